"""Lines that say that something failed, after which the training moves on for long: nothing ended by them."""

from __future__ import annotations

import pytest

from unhang.testing import judge, log_case

_STEPS = "".join(f"step {i} loss 2.{i}\n" for i in range(20))
_LINES = {
    "memlock-limit": "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    "network-interface": "node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    "shm-too-small": "misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888): No space left on device (28)",
    "fabric-manager": "node-a:1:2 [0] transport/nvls.cc:243 NCCL WARN Cuda failure 800 'operation not permitted'",
    "cuda-kernel-error": "/src/Indexing.cu:1290: indexSelectLargeIndex: block: [9,0,0], thread: [1,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    "fd-exhaustion": "node-a:1:2 [0] misc/socket.cc:58 NCCL WARN Call to accept failed : Too many open files",
    "host-oom": "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons",
}


@pytest.mark.parametrize("cause", _LINES)
def test_a_failure_that_the_training_outlived_is_not_its_end(cause: str) -> None:
    assert judge(log_case(_LINES[cause] + "\nRuntimeError: it failed\n")).findings, "accused where nothing follows"
    assert [f.cause for f in judge(log_case(_LINES[cause] + "\n" + _STEPS)).findings if f.cause == cause] == []
