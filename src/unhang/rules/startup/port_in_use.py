"""Rule: the rendezvous port is taken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogLine
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.failure import PORT_TAKEN, frame_of, text_of

_PORT = re.compile(r"port:? ?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
_ERROR = "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE, address already in use@main:3"


class PortInUse(Rule):
    """The port of the rendezvous is taken by another process.

    What it detects:
        The store or launcher failed with EADDRINUSE.

    Why it hangs:
        Rank 0 cannot open the store; the others wait for it, or connect to the store of another job.

    How to confirm:
        Who holds the port: `ss -ltnp 'sport = :29500'`. It may be another live job; do not kill by name.

    How to fix:
        Another port, or `--standalone`, which picks a free one (and ignores --master-port).

    Sources:
        torch/distributed/run.py: --standalone uses port 0.
    """

    id = "port-in-use"
    cause = "port-in-use"
    EXAMPLES: ClassVar = (
        Fires(make_case({}, errors={0: _ERROR}, hang=None, exit_code=1), (0,), 3),
        Fires(
            make_case(
                {},
                hang=None,
                exit_code=1,
                log=[
                    "RuntimeError: The server socket has failed to listen ... port: 29500 ... EADDRINUSE, address already in use"
                ],
            ),
            (),
        ),
        Quiet(
            make_case({}, errors={0: "ConnectionRefusedError: [Errno 111]@main:3"}, hang=None, exit_code=1),
            "nobody listens there: another cause",
        ),
        Quiet(
            make_case({}, hang=None, exit_code=0, log=["warning: address already in use, trying next port"]),
            "a warning in a job that ended well",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the failure, or the output of a failed job, says EADDRINUSE."""
        failed = [f for f in s.failures if PORT_TAKEN.search(text_of(f))]
        lines = [x for x in s.case.log if PORT_TAKEN.search(x.text)] if s.is_crash else []
        if not failed and (not lines or s.primary_failure is not None):
            return
        ranks = tuple(sorted(f.rank for f in failed))
        frame = frame_of(failed[0]) if failed else None
        port = _port(text_of(failed[0]) if failed else lines[0].text)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the rendezvous port{f' {port}' if port else ''} is already in use",
            confidence=0.96,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because="The store could not listen: another process on this host holds the port.",
            location=w.location_of(frame),
            evidence=tuple(_evidence(failed[0].rank if failed else None, text_of(failed[0]) if failed else "", lines)),
            fixes=_fixes(port),
        )


def _port(text: str) -> str:
    match = _PORT.search(text)
    return next((g for g in match.groups() if g), "") if match else ""


def _evidence(rank: int | None, text: str, lines: list[LogLine]) -> Iterable[EvidenceLine]:
    if rank is not None:
        yield EvidenceLine(f"rank {rank} exception", text[:300])
    for line in lines[:2]:
        yield EvidenceLine("output", line.text[:300], line.source.line)


def _fixes(port: str) -> tuple[Fix, ...]:
    number = port or "29500"
    return (
        Fix(
            "See who holds it",
            command=f"ss -ltnp 'sport = :{number}'",
            verify="pid and command of the holder: an orphan, or another live job?",
            undo="nothing is changed",
        ),
        Fix(
            "Take a free port",
            command="torchrun --standalone ...   (or --rdzv-endpoint localhost:0)",
            verify="the job starts",
            undo="restore the endpoint",
        ),
    )
