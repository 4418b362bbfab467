"""The cases of memlock-limit."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_OF_UCX = (
    "[1706.2] [n1:7 :0] ib_md.c:309 UCX  ERROR ibv_reg_mr(address=0x7f, length=8) failed: Cannot allocate memory\n"
)
_STEPS = "\n".join(f"step {i} loss 2.1" for i in range(20))

_FAILED = "misc/ibvwrap.cc:217 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"


CASES = {
    "memlock-limit": (
        Fires(
            log_case(
                "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
            ),
            (),
        ),
        Quiet(log_case("OSError: [Errno 12] Cannot allocate memory\n"), "the host's memory is another thing"),
        Quiet(
            log_case(
                "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.\n    This will severely limit memory registrations.\n"
            ),
            "a warning in a job that works",
        ),
        Quiet(
            log_case(_OF_UCX + "Starting\nRound 1\nRound 2\n"),
            "UCX alone, which was asked and then not taken: the program prints on",
        ),
        Fires(log_case(_OF_UCX + "Starting\nRuntimeError: it failed\n"), ()),
        Fires(log_case(_OF_UCX + "pml_ucx.c:309  Error: Failed to create UCP worker\nMPI_Init\naborted\n"), ()),
        Quiet(log_case(_OF_UCX + _STEPS), "the training moved on without it"),
        Quiet(
            log_case("+ ulimit -l\nunlimited\n" + _FAILED),
            "the script that starts the job shows that there is no limit",
        ),
        Fires(log_case("+ ulimit -l\n65536\n" + _FAILED), ()),
        Fires(log_case("user@login:~$ ulimit -l\nunlimited\n" + _FAILED), ()),
        Fires(
            log_case("node-a: + ulimit -l\nnode-a: unlimited\n" + "node-a: ready\n" * 9 + f"node-b: {_FAILED}" * 9), ()
        ),
    ),
}
