"""The cases of device-mapping."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_TWICE = (
    "node-a:86771:21784 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank {} and rank {} both on CUDA device 1000"
)

_ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"

_USED = "1, 3 MiB, 0 %\n2, 3 MiB, 0 %\n"
_ALONE = (
    'model.train(data="VisDrone.yaml", device=[0, 1, 2], batch=128)\n0, 23641 MiB, 100 %\n'
    + _USED
    + "Traceback (most recent call last):\n"
    '  File "train.py", line 5, in <module>\n    model.train()\n'
    "RuntimeError: CUDA out of memory. Tried to allocate 1.86 GiB (GPU 0; 23.70 GiB total capacity; 20.11 GiB already allocated)\n"
)

_OWN = "".join(f"[INFO] Multi-GPU training: world_size=2 local_rank={r} device=cuda:0\n" for r in range(2))
_INTERRUPTED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 88120 got signal: 2\n"

_GUESSED = "".join(
    f"[rank{r}]:[W915 15:20:36.410112008 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank {r}]  using GPU 0 to perform barrier as devices used "
    "by this process are currently unknown.\n"
    for r in range(2)
)
_APPS = "00000000:17:00.0, 22766, 418 MiB\n00000000:17:00.0, 22767, 418 MiB\n"

_ASSERTS = (
    "$ python -m torch.distributed.launch --nproc_per_node 4 --nnodes {} train.py --device 0,1,2\n"
    'Traceback (most recent call last):\n  File "train.py", line 427, in <module>\n'
    "    assert torch.cuda.device_count() > opt.local_rank\nAssertionError\n"
)

_PAIRS = "".join(
    f"node-a:{pid}:{pid} [{d}] init.cc:943 NCCL WARN Duplicate GPU detected : rank {r} and rank {1 - r} both on CUDA device {d}b000\n"
    for pid, d, r in ((5, 0, 0), (6, 1, 0), (7, 0, 1), (8, 1, 1))
)

CASES = {
    "device-mapping": (
        Fires(log_case(_ASSERTS.format(1)), (3,)),
        Fires(log_case(_ASSERTS.format(2)), ()),
        Fires(log_case("\n".join(_TWICE.format(r, 0) for r in (1, 2))), (0, 1, 2)),
        Fires(log_case(f"[rank6]: Traceback (most recent call last):\n[rank6]: {_ORDINAL}"), (6,)),
        Fires(make_case({}, errors={3: f"{_ORDINAL}@main:9"}, hang=None, exit_code=1), (3,)),
        Fires(
            log_case(
                'Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n'
                "    assert torch.cuda.device_count() > local_rank\nAssertionError\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "[W ProcessGroupNCCL.cpp:1856] [Rank 3] using GPU 3 to perform barrier as devices used by this process are currently unknown."
            ),
            "a warning that healthy jobs print",
        ),
        Quiet(
            log_case("node-a:1:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"),
            "the device of another process, hidden from this one",
        ),
        Fires(log_case("Using device: cuda:1\n" + _OWN + _INTERRUPTED), ()),
        Quiet(log_case(_OWN + _INTERRUPTED), "each rank may see one device only"),
        Quiet(
            log_case("Using device: cuda:1\n" + _OWN + "step 1 loss 2.1\nstep 2 loss 2.0\n" + _INTERRUPTED),
            "they share a device, and the training goes on",
        ),
        Fires(log_case(_GUESSED + _APPS), (1,)),
        Quiet(log_case(_GUESSED), "each may see a device of its own, which it calls by the number 0"),
        Quiet(
            log_case(_GUESSED + _APPS + "00000000:65:00.0, 22767, 30418 MiB\n"),
            "a rank computes on a device of its own, and has a context on the first one, too",
        ),
        Fires(log_case("+ srun torchrun --nnodes 2 --nproc_per_node 2 t.py\n" + _PAIRS), (), cause="launcher-misuse"),
        Fires(log_case("$ python two_replicas.py --tp 2\n" + _PAIRS), (), cause="device-mapping"),
        Fires(log_case(_ALONE), ()),
        Quiet(
            log_case(_ALONE.replace("1, 3 MiB, 0 %", "1, 23011 MiB, 97 %")),
            "two of the devices that were asked for are in use",
        ),
        Quiet(log_case(_ALONE.replace("[0, 1, 2]", "[0]")), "one device was asked for, others are idle"),
    ),
}
