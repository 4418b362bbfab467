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

CASES = {
    "device-mapping": (
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
        Fires(log_case(_ALONE), ()),
        Quiet(
            log_case(_ALONE.replace("1, 3 MiB, 0 %", "1, 23011 MiB, 97 %")),
            "two of the devices that were asked for are in use",
        ),
        Quiet(log_case(_ALONE.replace("[0, 1, 2]", "[0]")), "one device was asked for, others are idle"),
    ),
}
