"""Rule: a port that the job needs is held, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite

_IN_USE = "Address already in use"
_ASKED, _DEFAULT = "asked", "default"
_HELD: dict[str, Any] = {"pid": 4711, "command": "python train.py", "user": "ann", "age_s": 86_400, "listens": True}
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


class PortHeld(ReadingRule):
    """A port that the job needs is held by another process; an orphan of an earlier job is told from a live one.

    What it detects:
        The port cannot be bound on the host that needs it. Who holds it is read from the kernel's tables. It is called an
        orphan where it is a rank (RANK is in its environment) whose launcher is gone.

    Why it hangs:
        Rank 0 cannot open the store, or the ranks meet in the store of another job and wait there for each other.

    How to confirm:
        `ss -ltnp 'sport = :PORT'` as root or as the owner of the process.

    How to fix:
        Another port where the holder is a live job; end the process by its number where it is an orphan.

    Sources:
        torch/distributed/run.py: --standalone picks a free port.
    """

    id = "port-held"
    cause = "port-in-use"
    reads = ("network.port",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "network.port 29500",
                    role="MASTER_PORT",
                    is_free=False,
                    is_ours=False,
                    is_orphan=True,
                    rank_of_holder="3",
                    parent_pid=1,
                    started_ticks=7,
                    **_HELD,
                )
            ),
            (0,),
        ),
        Fires(readings_case(read("network.port 8500", role="asked", is_free=False, is_ours=False, listens=True)), (0,)),
        Quiet(readings_case(read("network.port 29500", role="MASTER_PORT", is_free=True, is_ours=False)), "it is free"),
        Quiet(
            readings_case(read("network.port 29500", role="MASTER_PORT", is_free=False, is_ours=True, **_HELD)),
            "the store of this very job",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per held port of a host."""
        seen: set[tuple[str, str]] = set()
        for port in s.readings.of("network.port"):
            if port["is_free"] is not False or port["is_ours"] is True or (port.host, port.subject) in seen:
                continue
            seen.add((port.host, port.subject))
            yield self._finding(s, port)

    def _finding(self, s: Situation, port: Reading) -> Finding:
        role = port.text("role")
        is_default = role == _DEFAULT
        culprits = () if port.rank is None or is_default else (port.rank,)
        why = "Rank 0 cannot open its store there." if role != _ASKED else "The job cannot listen there."
        if is_default:
            why = "It is torchrun's default; a job without --master-port and without --standalone would not start."
        if port["is_orphan"] is True:
            why += f" The holder was rank {port.text('rank_of_holder')} of a job whose launcher is gone."
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"port {port.subject}{'' if role == _ASKED else f' ({role})'} on {port.host or 'this machine'} {_held_by(port)}",
            confidence=0.5 if is_default else 0.96,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits) if culprits else (),
            because=why,
            evidence=cite([port]),
            fixes=_fixes(port, role),
        )


def _held_by(port: Reading) -> str:
    pid = port.number("pid")
    if pid is None:
        if not port["listens"] and port["reason"] not in (None, _IN_USE):
            return f"cannot be bound: {port.text('reason')}"
        how = "a socket that is not ours" if port["listens"] else "a connection, no listener"
        return f"is held by {how} (its process is not visible: another user, or another container)"
    kind = "an orphan of an earlier job" if port["is_orphan"] is True else "a live process"
    facts = ", ".join(
        part for part in (f"user {port.text('user')}" * bool(port["user"]), _age(port.number("age_s"))) if part
    )
    return f"is held by {kind}: {port.text('command')} (pid {int(pid)}, {facts})"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit:
            return f"for {seconds / unit:.0f} {name}"
    return f"for {seconds:.0f} s"


def _fixes(port: Reading, role: str) -> tuple[Fix, ...]:
    other = Fix(
        "Take another port",
        setting=f"{'--ports' if role == _ASKED else 'MASTER_PORT'}=<a free port>, or torchrun --standalone on one node",
        verify="unhang check --only network",
        undo=f"the port was {port.subject}",
    )
    pid = port.number("pid")
    if port["is_orphan"] is not True or pid is None:
        return (other,)
    end = Fix(
        "End the orphan, after looking at it",
        command=f"ps -o pid,ppid,user,etime,cmd -p {int(pid)}   # then: unhang check --only network --end-orphans",
        verify=f"ss -ltn 'sport = :{port.subject}' shows nothing",
        undo="an ended process does not come back; nothing else is changed",
    )
    return (end, other)
