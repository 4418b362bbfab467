"""Rule: the rendezvous port is taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import PORT_TAKEN, frame_of, text_of
from unhang.rules.startup.start_rule import StartRule, has_other_error, seen

_PORT = re.compile(r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
_ERROR = "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE, address already in use@main:3"
_BIND = (
    "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use)."
)
_LISTEN = "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address."
_WARNINGS = ("store.listen_failed", "store.bind_failed")


class PortInUse(StartRule):
    """The port of the rendezvous is taken by another process.

    What it detects:
        The store or launcher failed with EADDRINUSE (errno 98), and the job did not go on.

    Why it hangs:
        Rank 0 cannot open the store; the others wait for it, or connect to the store of another job.

    How to confirm:
        Who holds the port: `ss -ltnp 'sport = :29500'`. It may be another live job; do not kill by name.

    How to fix:
        Another port, or `--standalone`, which picks a free one (and ignores --master-port). Lines with errno 97 beside it only
        say that the host has no IPv6.

    Sources:
        torch/distributed/run.py: --standalone uses port 0.
    """

    id = "port-in-use"
    cause = "port-in-use"
    kinds = ("store.port_taken", *_WARNINGS)
    over = ("watchdog.timeout", "store.barrier_done")
    confidence = 0.96
    EXAMPLES: ClassVar = (
        Fires(make_case({}, errors={0: _ERROR}, hang=None, exit_code=1), (0,), 3),
        Fires(log_case("RuntimeError: The server socket has failed to listen ... port: 29500 ... EADDRINUSE"), ()),
        Fires(log_case(f"Start training ...\n{_BIND}\n{_LISTEN}"), ()),
        Quiet(
            make_case({}, errors={0: "ConnectionRefusedError: [Errno 111]@main:3"}, hang=None, exit_code=1),
            "nobody listens there: another cause",
        ),
        Quiet(
            make_case({}, hang=None, exit_code=0, log=["warning: address already in use, trying next port"]),
            "a warning in a job that ended well",
        ),
        Quiet(
            log_case(
                f"{_BIND}\n{_LISTEN}\nRendezvous complete for workers. Result:\nRuntimeError: CUDA error: unknown error"
            ),
            "a second agent on the host that then joined as a client",
        ),
        Quiet(
            log_case(f"{_BIND}\nepoch 1 step 10 loss 2.31"),
            "the other address family was free",
        ),
    )
    headline = "the rendezvous port is already in use"
    reason = (
        "The store could not listen: another process on this host holds the port. A changed MASTER_PORT that makes no difference means "
        "that a library or the launcher opens a port of its own choice."
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Errors, or warnings after which nothing shows that the start went on."""
        errors = self.still_starting(s, seen(s, "store.port_taken"))
        if errors:
            return errors
        joined = s.events.of("elastic.rendezvous_done")
        warned = self.still_starting(s, s.events.of(*_WARNINGS))
        return [e for e in warned if not any(j.order > e.order for j in joined)]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks that could not listen."""
        return tuple(sorted({e.rank for e in events if e.rank is not None}))

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Less for warnings; of a bind alone the other address family may have been free."""
        if any(e.kind == "store.port_taken" for e in events):
            return self.confidence
        return 0.9 if any(e.kind == "store.listen_failed" for e in events) else 0.75

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """An exception that comes first names the cause whatever else is in the log."""
        sure = self.sureness(s, events)
        return min(sure, 0.6) if has_other_error(s) else sure

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the port."""
        port = _port(events)
        return f"the rendezvous port {port} is already in use" if port else self.headline

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """Who holds it; another one."""
        return _fixes(_port(events))

    def check(self, s: Situation) -> list[Finding]:
        """One finding, with the line of the program where the exception is known."""
        frame = next((frame_of(f) for f in s.failures if PORT_TAKEN.search(text_of(f))), None)
        return [replace(finding, location=w.location_of(frame)) for finding in super().check(s)]


def _port(events: Sequence[LogEvent]) -> str:
    for event in events:
        if port := event["port"]:
            return port
        if match := _PORT.search(event.text):
            return next((g for g in match.groups() if g), "")
    return ""


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
