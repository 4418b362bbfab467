"""The cases of rank0-works-alone."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_BAR = "Running tokenizer on dataset:  {0}%|##   | {1}/49703 [{2}<02:06, 122.64 examples/s]\n"

_LATENTS = " 87%|####6 | 1582/1818 [30:02<04:26,  1.13s/it]\n"

_LOST = "node-a:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<54862> with status=12 opcode=0 len=0 vendor err 129\n"

_EVALUATES = "Evaluating bbox...\nEvaluate annotation type *bbox*\n"

_SAVED = "[Torch] Saving out/best/mp_rank_00_model_states.pt...\n[Torch] Saved out/best/mp_rank_00_model_states.pt.\n"

_EPOCHS = (
    "Epoch 1:  20%|##   | 264/1324 [00:46<03:06, 5.71it/s]\nSaving model checkpoint to out\n"
    "Epoch 2:  20%|##   | 264/1324 [00:46<03:06, 5.71it/s]\n"
)

_PRINTS = "[rank1]: verified\n[rank2]: verified\n[rank3]: verified\n" + "".join(
    f"[rank{{0}}]: row {n}\n" for n in range(6)
)

_COUNTS = "  scored {}/2086 of the questions\n"
_WAIT_SMALL = timeouts((1, 12, "ALLREDUCE", 9000), (2, 12, "ALLREDUCE", 9000)) + "\n"

_ROWS = "[rank{rank}] weight {n} of the table matches\n"
_ROWS_OF_0_AND_5 = "".join(_ROWS.format(rank=r, n="{n}") for r in (0, 5))
_PACKS = "Packing rows (num_proc=32):  {0}%|##   | {0}/100\n"
_WAIT_STEP = timeouts((1, 700, "ALLREDUCE", 90000), (2, 700, "ALLREDUCE", 90000)) + "\n"
_STEPS = "world size 3\n" + "".join(f"iteration {n} loss 0.1\n" for n in range(6))

_STALLED = (
    "W horovod/common/operations.cc:588] One or more tensors were submitted to be reduced, gathered or broadcasted "
    "by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n"
    "Stalled ops:\nallreduce.w [missing ranks: 0]\n"
)
_BESIDE_A_STALL = (
    "[1,1]<stdout>:step 7 begins\n[1,2]<stdout>:step 7 begins\n[1,0]<stdout>:[0] tiles 100/900\n"
    + _STALLED
    + "[1,0]<stdout>:[0] tiles 200/900\n"
    + _STALLED
    + "[1,0]<stdout>:[0] tiles 300/900\n"
)

_COMPILES = "[2025-12-26 08:51:31 DP0 TP0 EP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time\n"
_WARMUP = "DeepGEMM warmup: {}%|###      | 6061/16384 [09:58<17:02, 10.09it/s]\n"
_NO_ID = (
    "torch.distributed.DistBackendError: [10] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
    "by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0\n"
)

_KERNELS = "".join(
    f"inductor: compiling kernel {90 * n}/1841 triton_fused_{w}_0\n"
    for n, w in enumerate(("add", "mul", "sum", "amax"), 1)
)
_OF_TWO = (
    "world size 2\n"
    + _KERNELS
    + timeouts((0, 9, "ALLREDUCE", 90000))
    + "\ninductor: compiling kernel 600/1841 triton_fused_mm_7\n"
)

CASES = {
    "rank0-works-alone": (
        Fires(log_case(_OF_TWO), (1,)),
        Fires(log_case(_BAR.format(9, 2800, "29:55") + timeouts((2, 2, "ALLREDUCE", 1), (1, 2, "ALLREDUCE", 1))), (0,)),
        Fires(log_case("INFO Saving model checkpoint to out\n" + timeouts((4, 28956, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(_BESIDE_A_STALL), (0,)),
        Quiet(
            log_case(
                "Saving model checkpoint to out\nrank 0:\n    barrier (torch/distributed/distributed_c10d.py:2776)\n    evaluate (run.py:226)\n"
                + timeouts((4, 28956, "ALLREDUCE", 1))
            ),
            "its stack shows that it waits itself",
        ),
        Fires(log_case(_BAR.format(70, 34947, "10:21")), (0,)),
        Fires(log_case("world size 3\n" + timeouts((1, 460631, "ALLREDUCE", 1), (2, 460631, "ALLREDUCE", 1))), (0,)),
        Quiet(
            log_case(timeouts((1, 460631, "ALLREDUCE", 1), (2, 460631, "ALLREDUCE", 1))),
            "how many ranks there are is not told, and no work of rank 0 is seen",
        ),
        Quiet(log_case(timeouts((7, 460631, "ALLREDUCE", 1))), "one rank of many speaks"),
        Fires(log_case("building the indices on rank 0 ...\nRuntimeError: Socket Timeout"), (0,)),
        Fires(log_case(_LATENTS + timeouts((1, 3, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(_LATENTS + timeouts((1, 3, "ALLREDUCE", 900))), (0,)),
        Fires(log_case(_EVALUATES + timeouts((2, 987, "BROADCAST", 1), (3, 987, "BROADCAST", 1))), (0,)),
        Quiet(
            log_case(_EVALUATES + timeouts((1, 987, "BROADCAST", 2952704), (3, 987, "BROADCAST", 2952704))),
            "they wait for parameters, and not for what came out of an evaluation",
        ),
        Quiet(
            log_case(_SAVED + timeouts((1, 880, "ALLREDUCE", 90000))),
            "the save is told to be done, by the name of its file",
        ),
        Quiet(
            log_case(_EPOCHS + timeouts((1, 880, "ALLREDUCE", 90000))),
            "the bar of the next epoch shows the same numbers",
        ),
        Fires(
            log_case(
                _PRINTS.format(0) + timeouts((2, 12, "ALLREDUCE", 1), (5, 12, "ALLREDUCE", 1), (6, 12, "ALLREDUCE", 1))
            ),
            (0,),
        ),
        Quiet(
            log_case(
                _PRINTS.format(4) + timeouts((2, 12, "ALLREDUCE", 1), (5, 12, "ALLREDUCE", 1), (6, 12, "ALLREDUCE", 1))
            ),
            "another rank printed last",
        ),
        Quiet(
            log_case(_PRINTS.format(0) + timeouts((2, 12, "ALLREDUCE", 900), (5, 12, "ALLREDUCE", 900))),
            "it printed last, and the others wait in no barrier",
        ),
        Fires(log_case(_COUNTS.format(200) + _WAIT_SMALL + _COUNTS.format(250)), (0,)),
        Quiet(
            log_case(_COUNTS.format(200) + _WAIT_SMALL + _COUNTS.format(200)),
            "a count that is only printed again is not going on",
        ),
        Fires(log_case(_ROWS.format(rank=0, n=1) + _WAIT_STEP + _ROWS.format(rank=0, n=2)), (0,)),
        Fires(log_case(_ROWS.format(rank=5, n=1) + _WAIT_STEP + _ROWS.format(rank=5, n=2)), (5,)),
        Quiet(
            log_case(_ROWS_OF_0_AND_5.format(n=1) + _WAIT_STEP + _ROWS_OF_0_AND_5.format(n=2)),
            "several ranks print on",
        ),
        Quiet(
            log_case(_ROWS.format(rank=0, n=1) + _ROWS.format(rank=1, n=1) + _WAIT_STEP + _ROWS.format(rank=0, n=2)),
            "those that wait print it as well",
        ),
        Quiet(
            log_case("[rank0] heartbeat 1\n" + _WAIT_STEP + "[rank0] heartbeat 2\n"),
            "who does nothing prints that too",
        ),
        Fires(log_case(_PACKS.format(40) + timeouts((1, 1, "ALLREDUCE", 9), (3, 1, "ALLREDUCE", 9))), (0,)),
        Quiet(
            log_case(_PACKS.format(40) + _PACKS.format(30) + timeouts((1, 1, "ALLREDUCE", 9), (3, 1, "ALLREDUCE", 9))),
            "several ranks draw the bar",
        ),
        Quiet(
            log_case(_PACKS.format(40).replace("Packing", "Epoch 1") + timeouts((1, 1, "ALLREDUCE", 9))),
            "the bar is that of the training",
        ),
        Fires(
            log_case(
                "Evolving anchors:   0%|▏      | 3/1000 [02:03<11:24:29, 41.19s/it]"
                + timeouts((1, 1, "ALLGATHER", 9), (3, 1, "ALLGATHER", 9))
            ),
            (0,),
        ),
        Fires(log_case(_STEPS + "Diagnosis:\n" + _WAIT_STEP), (0,)),
        Quiet(log_case(_STEPS + _WAIT_STEP), "its last word is a step"),
        Quiet(log_case(_STEPS + "plots are finished\n" + _WAIT_STEP), "its last word is that something ended"),
        Quiet(
            log_case(_STEPS.replace("size 3", "size 8") + "Diagnosis:\n" + _WAIT_STEP),
            "rank 0 is not the only one silent",
        ),
        Quiet(log_case(_LATENTS + timeouts((1, 1500, "ALLREDUCE", 900))), "the bar counts steps of training"),
        Quiet(
            log_case(
                "Epoch 0:  95%|████ | 8692/9188 [30:57<01:45,  4.68it/s, loss=11.5, v_num=0]"
                + timeouts((1, 13, "BROADCAST", 1))
                + "\nEpoch 0:  95%|████ | 8695/9188 [30:58<01:45,  4.68it/s, loss=11.5, v_num=0]\n"
            ),
            "a bar that shows a loss is training",
        ),
        Quiet(
            log_case("Evaluating:  12%|#2 | 12/100 [00:10<01:20]\n" + timeouts((1, 88, "_ALLGATHER_BASE", 9))),
            "all evaluate",
        ),
        Quiet(
            log_case("Saving FSDP model\n" + timeouts((2, 18364, "ALLGATHER", 9))),
            "all save: rank 0 may be alone in it",
        ),
        Quiet(
            log_case(
                "Saving model checkpoint to out\nsuccessfully saved checkpoint\n" + timeouts((6, 880, "ALLREDUCE", 900))
            ),
            "the save is done",
        ),
        Quiet(
            log_case(timeouts((3, 70, "ALLREDUCE", 1)).replace("[rank3]", "[rank7]")),
            "a group of its own, in which rank 0 need not be",
        ),
        Quiet(log_case(timeouts((7, 1, "ALLREDUCE", 1))), "one rank alone in the first call: perhaps no connection"),
        Quiet(log_case(timeouts((2, 1, "ALLREDUCE", 1), (3, 1, "ALLREDUCE", 1))), "nor do two tell of the others"),
        Quiet(log_case(_BAR.format(100, 49703, "10:21") + timeouts((1, 880, "ALLREDUCE", 900))), "the work is done"),
        Quiet(log_case(_BAR.format(20, 9947, "01:21")), "it is still within every limit"),
        Quiet(
            log_case("Saving model checkpoint to out\n{'loss': 1.2}\n" + timeouts((1, 880, "ALLREDUCE", 900))),
            "it trained on after the save",
        ),
        Quiet(
            log_case(timeouts((1, 5, "ALLREDUCE", 1), (4, 5, "ALLREDUCE", 1), (5, 5, "ALLREDUCE", 1))),
            "rank 0 is not the only one that is silent",
        ),
        Quiet(
            log_case(
                "epoch finished, saving last checkpoint to out\n" + timeouts((9, 88112, "_ALLGATHER_BASE", 20316160))
            ),
            "the sharded model is gathered: all may take part",
        ),
        Quiet(
            log_case(_LOST + "Saving model checkpoint to out\n" + timeouts((6, 880, "ALLREDUCE", 1))),
            "the network failed",
        ),
        Quiet(
            log_case(
                "Saving model checkpoint to out\nOSError: [Errno 28] No space left on device\n"
                + timeouts((6, 8, "ALLREDUCE", 1))
            ),
            "the work failed",
        ),
        Quiet(
            log_case(
                "[Gloo] Rank 3 is connected to 31 peer ranks. Expected number of connected peer ranks is : 31\n"
                + timeouts((3, 26, "ALLREDUCE", 1))
            ),
            "one of many speaks: thirty others may be the missing ones",
        ),
        Quiet(
            log_case("Running validation...\n" + timeouts((1, 3271, "BROADCAST", 2984960), (3, 3271, "BROADCAST", 9))),
            "all may evaluate, and it is no barrier",
        ),
        Fires(log_case(f"{_COMPILES}{_NO_ID}"), (0,)),
        Fires(log_case(f"{_COMPILES}{_WARMUP.format(37)}{_NO_ID}"), (0,)),
        Quiet(log_case(f"{_COMPILES}{_WARMUP.format(100)}{_NO_ID}"), "it is prepared"),
        Quiet(log_case(f"{_COMPILES}step 9 loss 2.1\n{_NO_ID}"), "it trained on after the work"),
        Quiet(
            log_case("INFO Saving model checkpoint to out\n" + timeouts((0, 140, "ALLREDUCE", 1))),
            "rank 0 itself waits",
        ),
    ),
}
