"""The cases of left-without-error."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_ECHO = (
    "[rank{0}]: Traceback (most recent call last):\n"
    '[rank{0}]:   File "/app/train.py", line 33, in main\n[rank{0}]:     step(i)\n'
    "[rank{0}]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:27325.\n"
)

_HEAD = "train.py FAILED\n------------------------------------------------------------\nFailures:\n"

_RECORD = (
    "[{0}]:\n  time      : 2026-03-01_15:41:4{0}\n  host      : node1\n  rank      : {1} (local_rank: {2})\n"
    "  exitcode  : {3} (pid: 285{1})\n  error_file: <N/A>\n"
)


def _log(*ends: tuple[int, int, int]) -> str:
    """A log of echoes and of torchrun's summary, for examples: (rank, local rank, exit code)."""
    records = "".join(_RECORD.format(i, *end) for i, end in enumerate(ends))
    return "".join(_ECHO.format(rank) for rank, _, code in ends if code == 1) + _HEAD + records


CASES = {
    "left-without-error": (
        Fires(log_case(_log((0, 0, 1), (2, 2, -15))), (1,)),
        Quiet(
            log_case(_log((0, 0, 1), (2, 0, 1))), "ranks of other nodes: the one between may simply not be in this log"
        ),
        Quiet(log_case(_log((0, 0, 1), (2, 2, -11))), "one was killed by a signal of its own"),
        Quiet(log_case(_log((0, 0, 1), (1, 1, -15))), "no rank is left out"),
    ),
}
