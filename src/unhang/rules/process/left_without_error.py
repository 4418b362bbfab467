"""Rule: the launcher tells how all ranks of a node ended but one, and that one was gone when the others noticed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

from unhang.analyze.failures import is_communication_error
from unhang.analyze.first_errors import first_error
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, RankEvidence
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case

_LEAST = 2
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


class LeftWithoutError(Rule):
    """A rank ended without an error while the others still needed it.

    What it detects:
        torchrun's summary lists all ranks of a node but one, and those listed only report a closed connection. torchrun lists
        every rank that failed or that it had to end; one that is not listed had ended with exit code 0.

    Why it hangs:
        With gloo the others fail with "Connection closed by peer"; with NCCL they wait for the timeout.

    How to confirm:
        The output of that rank: it came to the end of its program, or called sys.exit(0).

    How to fix:
        Let all ranks take the decision to stop together.

    Sources:
        torch/distributed/elastic/multiprocessing/api.py: a worker that exits with 0 is no failure.
    """

    id = "left-without-error"
    cause = "rank-exited-early"
    EXAMPLES: ClassVar = (
        Fires(log_case(_log((0, 0, 1), (2, 2, -15))), (1,)),
        Quiet(
            log_case(_log((0, 0, 1), (2, 0, 1))), "ranks of other nodes: the one between may simply not be in this log"
        ),
        Quiet(log_case(_log((0, 0, 1), (2, 2, -11))), "one was killed by a signal of its own"),
        Quiet(log_case(_log((0, 0, 1), (1, 1, -15))), "no rank is left out"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the ranks that are left out."""
        ended = {r: e for r, e in s.case.ranks.items() if e.exit is not None and e.identity.local_rank is not None}
        if len(ended) < _LEAST or s.primary_failure is not None or first_error(s) is not None or len(s.case.calls):
            return
        echoes = [e for e in ended.values() if e.error is not None]
        if not echoes or not all(e.error and is_communication_error(e.error) for e in echoes):
            return
        if any(e.exit and e.exit.code not in (1, -6, -15) for e in ended.values()) or any(
            e.says == "hang" for e in s.events
        ):
            return
        missing = tuple(_left_out(ended))
        if not missing or len(missing) > len(ended) or any(r in s.case.ranks for r in missing):
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(missing)} ended without an error while the others still needed {w.verb(missing, 'it', 'them')}",
            confidence=0.85,
            culprit_ranks=missing,
            victim_ranks=tuple(ended),
            because=f"The launcher tells how {w.name_ranks(sorted(ended))} ended: they failed because a peer was gone, or were ended by it. "
            f"{w.name_ranks(missing)} {w.verb(missing, 'is', 'are')} not listed, which means exit code 0.",
            evidence=tuple(_lines(ended)),
            fixes=_FIXES,
        )


def _left_out(ended: dict[int, RankEvidence]) -> Iterable[int]:
    """Ranks between two of the same node that are not listed."""
    ranks = sorted(ended)
    for low, high in pairwise(ranks):
        offsets = {r - (ended[r].identity.local_rank or 0) for r in (low, high)}
        if len(offsets) == 1:
            yield from range(low + 1, high)


def _lines(ended: dict[int, RankEvidence]) -> Iterable[EvidenceLine]:
    for rank, evidence in sorted(ended.items())[:6]:
        error = evidence.error
        if error is not None:
            yield EvidenceLine(f"rank {rank} exception", f"{error.type}: {error.message[:200]}", error.source.line)
        elif evidence.exit is not None:
            yield EvidenceLine(f"rank {rank} exit", f"code {evidence.exit.code}, seen by the launcher")


_FIXES = (
    Fix(
        "Stop together: let all ranks take the decision",
        patch="stop = torch.tensor(int(wants_to_stop)); dist.all_reduce(stop, op=MAX)   # then every rank leaves the loop",
        verify="unhang run -- <the same command>: outcome clean",
        undo="revert the edit",
    ),
    Fix(
        "See where it left",
        command="unhang run -- <the same command>",
        verify="the report shows the line that called exit, or that main came to its end",
        undo="nothing is changed",
    ),
)
