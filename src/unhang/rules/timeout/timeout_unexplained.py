"""Rule: somebody waited too long, and nothing tells why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.failures import is_timeout
from unhang.analyze.first_errors import errors_of
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import lines_of
from unhang.model import Finding, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import RECORD_IT, SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts
from unhang.rules.timeout.rank_lags import behind

_LATE_WATCHDOG = 1.5
_LEAST = 2
_FEW = 2


class TimeoutUnexplained(Rule):
    """Ranks waited until their limit, and the log does not tell why.

    What it detects:
        Timeouts of collectives, barriers, or the heartbeat, when no other rule can say what came first.

    Why it hangs:
        Not established. A rank that is named here was missing or behind; what it did instead is not in the log.

    How to confirm:
        What decides: the stack of the ranks that did not wait (py-spy dump), or the recorded calls of all ranks.

    How to fix:
        Nothing should be changed on this evidence. Take the evidence first.

    Sources:
        In public incidents with an established cause, nine in ten of such timeouts came from the ranks' own programs.
    """

    id = "timeout-unexplained"
    cause = "unknown"
    is_fallback = True
    EXAMPLES: ClassVar = (
        Fires(log_case(timeouts((0, 808, "ALLREDUCE", 9801523), (1, 808, "ALLREDUCE", 9801523))), ()),
        Fires(
            log_case(
                "   - [7] finished collective #182, but didn't join collective #183 (count from 1)\n"
                + timeouts((0, 241, "ALLREDUCE", 6))
            ),
            (7,),
        ),
        Fires(log_case("Stalled ops:\nallreduce.conv1.weight [missing ranks: 0]"), (0,)),
        Quiet(log_case("INFO NCCL timeout is set to 1800000 ms"), "a setting"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding that says who waited, in what, who was missing as far as it is told, and what would decide."""
        told = [e for e in s.events if e.says == "hang"]
        if not told or len(s.case.calls) or any(r.stacks for r in s.case.ranks.values()):
            return
        missing, why, lines = _missing(s)
        waits = s.watchdogs.timed_out
        if waits:
            who = w.name_ranks(s.watchdogs.ranks) if s.watchdogs.ranks else "a rank"
            title = f"{who} waited in {waits[0]} until the limit"
        else:
            title = "somebody waited until the limit"
        title += f"; {w.name_ranks(missing)} {why}" if missing else "; who was missing is not told"
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=title + ". The cause is not established",
            confidence=0.3,
            culprit_ranks=missing,
            victim_ranks=tuple(r for r in s.watchdogs.ranks if r not in missing),
            because=" ".join(
                [*_remarks(s), "What decides: the stack, or the recorded calls, of the ranks that did not wait."]
            ),
            collective={"op": waits[0].op, "seq": waits[0].seq} if waits else None,
            evidence=(*quote(lines, 3), *quote(lines_of(waits) or told, 5)),
            fixes=(SEE_IT, RECORD_IT),
        )


def _missing(s: Situation) -> tuple[tuple[int, ...], str, Sequence[LogEvent]]:
    """(ranks that were missing or behind, how that is known, the lines)."""
    lagging, lines = s.watchdogs.lagging
    if lagging:
        return lagging, "had stopped before that call, as torch's own report says", lines
    by, late, _ = behind(s.watchdogs)
    if by:
        return tuple(sorted(c.rank for c in late)), f"had issued {by} calls less", [c.event for c in late]
    accused = s.events.of("frtrace.culprit")
    if accused:
        return s.events.ranks("frtrace.culprit"), "differed, as torch's analyser says", accused
    barrier = [e for e in s.events.of("gloo.monitored_barrier_missing") if e.number("missing") is not None]
    if barrier:
        return tuple(sorted({e.number("missing") or 0 for e in barrier})), "did not come to the barrier", barrier
    return _horovod(s) or _shorter_queue(s) or _only_silent_one(s) or ((), "", ())


def _numbers(text: str) -> set[int]:
    return {int(n) for n in text.split(",") if n.strip().isdecimal()}


def _horovod(s: Situation) -> tuple[tuple[int, ...], str, Sequence[LogEvent]] | None:
    told = s.events.of("horovod.missing")
    if told:
        sets = [_numbers(e["missing"]) for e in told]
        common = set.intersection(*sets)
        return (tuple(sorted(common)), "did not submit it", told) if common else None
    lists = s.events.of("horovod.missing_for")
    listed = {n for e in lists if (n := e.number("rank_")) is not None}
    if 0 < len(listed) <= _FEW:
        return tuple(sorted(listed)), "did not submit it", lists
    ready = [_numbers(e["ready"]) for e in s.events.of("horovod.ready")]
    if not ready or any(r != ready[0] for r in ready):
        return None
    absent = set(range(max(ready[0], default=0) + 1)) - ready[0]
    return (tuple(sorted(absent)), "had not submitted it", s.events.of("horovod.ready")) if absent else None


def _shorter_queue(s: Situation) -> tuple[tuple[int, ...], str, Sequence[LogEvent]] | None:
    """The heartbeat monitors tell how many works each rank has under way: the one with fewer has issued fewer."""
    queued = {
        e.rank: (n, e)
        for e in s.events.of("watchdog.stuck")
        if e.rank is not None and (n := e.number("queued")) is not None
    }
    if len(queued) < 3:
        return None
    most = max(n for n, _ in queued.values())
    fewer = sorted(rank for rank, (n, _) in queued.items() if n < most)
    if len(fewer) * 2 >= len(queued) or not fewer:
        return None
    return tuple(fewer), "had issued fewer calls", [queued[r][1] for r in fewer]


def _only_silent_one(s: Situation) -> tuple[tuple[int, ...], str, Sequence[LogEvent]] | None:
    """The one rank that the launcher ended while all others told that their wait had run out."""
    ended = {r for r, e in s.case.ranks.items() if e.exit is not None}
    waits = [e for e in errors_of(s) if e.rank is not None and is_timeout(e.error)]
    waited = {e.rank for e in waits} | set(s.watchdogs.ranks)
    silent = sorted(r for r in ended - waited if s.case.ranks[r].error is None)
    if len(silent) != 1 or len(waited) < _LEAST or ended != waited | set(silent) or silent[0] in s.watchdogs.seen:
        return None
    lines = [e for e in s.events if e.says == "hang" and e.rank in waited]
    return tuple(silent), "told nothing of a wait", lines


def _remarks(s: Situation) -> list[str]:
    """What the numbers show, without a cause."""
    found = []
    late = next(
        (x for x in s.watchdogs.timed_out if x.limit_ms and x.ran_ms and x.ran_ms > _LATE_WATCHDOG * x.limit_ms), None
    )
    if late is not None and late.ran_ms and late.limit_ms:
        found.append(
            f"The watchdog spoke after {late.ran_ms // 1000} s although the limit is {late.limit_ms // 1000} s: it was held up itself."
        )
    if s.events.has("watchdog.stuck"):
        found.append(
            "The heartbeat monitor says that the watchdog thread stood still: a CUDA call or the GIL held it, which is not the collective."
        )
    ahead = next((x for x in s.watchdogs.timed_out if x.enqueued and x.seq and x.enqueued > x.seq), None)
    if ahead is not None and ahead.enqueued and ahead.seq:
        found.append(
            f"Rank {ahead.rank} had issued {ahead.enqueued - ahead.seq} calls behind the one that waits: its program ran on."
        )
    seqs = {x.seq for x in s.watchdogs.timed_out if x.seq is not None}
    if len(seqs) > 1 and len(s.watchdogs.ranks) > 1:
        found.append(
            "The ranks wait at different positions: a root of a broadcast may go on before the others, so this alone is no fault."
        )
    if s.events.has("ddp.inconsistent_params"):
        found.append('"0 params" is what a first collective that never ran leaves behind, not another model.')
    return found
