"""The cases of fd-exhaustion."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

CASES = {
    "fd-exhaustion": (
        Fires(
            make_case(
                {},
                errors={1: "RuntimeError: unable to open shared memory object: Too many open files (24)@main:12"},
                hang=None,
                exit_code=1,
            ),
            (1,),
            12,
        ),
        Fires(
            log_case(
                "node-a:3:4 [0] os/linux.cc:90 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many open files\n"
            ),
            (),
        ),
        Quiet(
            make_case({}, errors={1: "OSError: No space left on device@main:12"}, hang=None, exit_code=1),
            "another limit",
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\nOSError: [Errno 24] Too many open files\n"
            ),
            "another failure came first",
        ),
        Quiet(log_case("wandb: Too many open files, retrying\nepoch 3 loss 0.2\n"), "a program that could go on"),
    ),
}
