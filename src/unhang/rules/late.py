"""The finding on a rank that its peers wait for: shared by the rules that tell what it is doing instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.analyze.callpath import user_path
from unhang.analyze.situation import LateRank, Situation
from unhang.model import CollectiveCall, EvidenceLine, Finding, Fix, ProcessGroup
from unhang.rules import wording as w

if TYPE_CHECKING:
    from unhang.rules.base import Rule


def limit_s(s: Situation, late: LateRank) -> float | None:
    """The timeout of the collective in which the victims wait."""
    for stuck in s.stuck:
        if stuck.group.name == late.edge.group and late.edge.waiter in stuck.calls:
            timeout_ms = stuck.calls[late.edge.waiter].timeout_ms
            return timeout_ms / 1000 if timeout_ms else None
    return None


def describe(
    s: Situation,
    rule: Rule,
    late: LateRank,
    confidence: float,
    what: str,
    fixes: tuple[Fix, ...],
    more: Sequence[EvidenceLine] = (),
) -> Finding:
    """The finding: who is late, for whose call, and where it is instead."""
    frame = late.activity.frame
    call, group = _awaited(s, late)
    where = f" at {w.place(frame)}" if frame else ""
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        title=f"rank {late.rank} {what}{where} and never reached {_owed(late)}",
        confidence=confidence,
        culprit_ranks=(late.rank,),
        victim_ranks=late.victims,
        because=_because(s, late),
        process_group=w.group_of(group) if group else None,
        collective=w.collective_of(call, call.seq) if call else None,
        location=w.location_of(frame),
        evidence=(*_evidence(s, late, call), *more),
        fixes=fixes,
    )


def _owed(late: LateRank) -> str:
    """What the others wait for, as the late rank would have called it."""
    if late.edge.kind != "p2p":
        return late.edge.what
    return f"its {'send to' if 'recv' in late.edge.what else 'receive from'} rank {late.edge.waiter}"


def _awaited(s: Situation, late: LateRank) -> tuple[CollectiveCall | None, ProcessGroup | None]:
    """The call of the oldest victim, which the late rank never made."""
    for stuck in s.stuck:
        if stuck.group.name == late.edge.group and stuck.seq == late.edge.seq:
            return stuck.calls.get(late.edge.waiter), stuck.group
    return None, None


def _because(s: Situation, late: LateRank) -> str:
    victims = w.name_ranks(late.victims)
    text = f"{victims} {w.verb(late.victims, 'waits', 'wait')} for rank {late.rank}, which waits for no other rank: it is in {late.activity.detail}."
    hang, limit = s.case.hang, limit_s(s, late)
    if hang is not None:
        text += f" They had waited for {max(0.0, hang.detected_after_s):.0f} s"
        text += f"; the group's own limit is {limit:.0f} s." if limit else "."
    return text


def _evidence(s: Situation, late: LateRank, call: CollectiveCall | None) -> Iterable[EvidenceLine]:
    yield from w.stack_lines(s.case.ranks.get(late.rank))
    yield from w.code_line(late.activity.frame, f"rank {late.rank} source")
    if call is not None:
        yield w.path_line(call.rank, f"#{call.seq} {w.name_call(call)} (waits)", user_path(call.frames))
    for edge in s.waits.edges[:4]:
        yield w.waiting_line(edge)
