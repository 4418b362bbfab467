"""The cases of memlock-limit."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

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
    ),
}
