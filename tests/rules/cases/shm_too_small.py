"""The cases of shm-too-small."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_RAISED = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in send\n    made = make(size)\n  File "{}", line 122, in __init__\n    allocate(size)\n'
    "OSError: [Errno 28] No space left on device\n"
)

CASES = {
    "shm-too-small": (
        Fires(
            log_case(
                "node-a:9847:6288 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-q3TTbA to 9637892 bytes, error: "
                "No space left on device (28)\nnode-a:9847:1797 [2] proxy.cc:1326 NCCL WARN Socket recv failed\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[node-b:378934:0:382579] Caught signal 7 (Bus error: nonexistent physical address)\n"
                " 2 0x0000000000068d6c ncclGroupEnd()  ???:0\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                "[rank2]: RuntimeError: DataLoader worker (pid 611) is killed by signal: Bus error. It is possible that dataloader's "
                "workers are out of shared memory. Please try to raise your shared memory limit.\n"
            ),
            (2,),
        ),
        Quiet(
            log_case(
                "[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n"
                "[1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888)\n"
            ),
            "the segment was there, the device could not use it",
        ),
        Fires(log_case(_RAISED.format("/usr/lib/python3.12/multiprocessing/shared_memory.py")), ()),
        Quiet(log_case("OSError: [Errno 28] No space left on device: '/data/ckpt.pt'\n"), "a full disk"),
        Quiet(log_case(_RAISED.format("/venv/site-packages/torch/serialization.py")), "a full disk without its name"),
    ),
}
