"""The cases of nccl-or-library-bug."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "nccl-or-library-bug": (
        Fires(
            log_case(
                "NCCL version 2.25.1+cuda12.8\n"
                "node-a:3:4 [0] enqueue.cc:1436 NCCL WARN ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] graph/search.cc:1080 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n"
            ),
            "a fallback that works",
        ),
        Quiet(
            log_case(
                "ncclInternalError: Internal check failed.\nLast error:\nSocket recv failed while polling for opId=0x1\n"
            ),
            "an internal error is often the echo of another rank's",
        ),
    ),
}
