"""Rules on collectives that completed and meant different things on the ranks: nothing hung there, the result is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.analyze.align import Unlike
from unhang.analyze.callpath import user_path
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule

_MOST_QUOTED = 6
# How each kind is said of a rank.
_DID = {"reduce_op": "reduced by {}", "root": "named {} as the root", "dtype": "gave elements of type {}"}
_LEAST_NAMED = 4


@rule("unlike-values", needs=("calls",))
def unlike_values_met(s: Situation) -> Iterator[Found]:
    """The first of each kind. In a job that hangs or failed only where the paths part there, too, and the same ranks are where it stopped."""
    for found in s.unlike:
        if not _is_in_trouble(s):
            yield _told(s, found, 0.95, found.odd if found.is_decided else (), found.kind)
        elif _led_to(s, found):
            yield _told(s, found, 0.75, found.odd, f"{found.kind}/parted", "code-divergence")


@rule("unlike-values-before", needs=("calls",), names=Names.REMARK)
def unlike_values_before(s: Situation) -> Iterator[Found]:
    """The same beside a hang or a failure to which it need not have led."""
    for found in s.unlike if _is_in_trouble(s) else ():
        if not _led_to(s, found):
            yield _told(s, found, 0.7, (), found.kind)


def _is_in_trouble(s: Situation) -> bool:
    return s.is_hang or s.is_crash or s.primary_failure is not None


def _led_to(s: Situation, found: Unlike) -> bool:
    """Whether those who differ came to the call on another way, and are those whose program has parted where the job hangs."""
    d = s.divergence
    return (
        d is not None and d.is_decided and found.is_decided and found.fork is not None and set(d.odd) == set(found.odd)
    )


def _told(
    s: Situation, found: Unlike, confidence: float, culprits: tuple[int, ...], say: str, cause: str = ""
) -> Found:
    call, path = found.call, user_path(found.call.frames)
    did = _DID[found.kind]
    by_value: dict[str, list[int]] = {}
    for rank, value in found.values.items():
        by_value.setdefault(value, []).append(rank)
    theirs = found.values[found.reference[0]]
    mine = {value: ranks for value, ranks in by_value.items() if value != theirs}
    words = {
        "odd": w.listed(
            [f"{w.name_ranks(ranks)} {did.format(value)}" for value, ranks in list(mine.items())[:_LEAST_NAMED]]
        ),
        "others": f"{w.name_ranks(found.reference)} {did.format(theirs)}",
        "call": f"{w.name_call(call)} #{call.seq} of {call.group}",
        "line": w.place(path[-1] if path else None),
        "lead": w.lead(path[-1] if path else None),
    }
    evidence = [
        w.path_line(
            r,
            f"#{call.seq} {w.name_call(found.calls[r])} (completed), {found.values[r]}",
            user_path(found.calls[r].frames),
        )
        for r in (*found.odd[:_MOST_QUOTED], found.reference[0])
    ]
    return Found(
        confidence,
        culprits,
        (*evidence, *_unknown(found)),
        words,
        say,
        None,
        s.others(culprits) if culprits else (),
        w.location_of(path[-1] if path else None),
        w.group_of(call.group),
        w.collective_of(call, call.seq),
        cause,
        is_root=not _is_in_trouble(s),
    )


def _unknown(found: Unlike) -> Iterator[EvidenceLine]:
    if unknown := sorted(set(found.calls) - set(found.values)):
        yield EvidenceLine("unknown", f"what {w.name_ranks(unknown)} meant was not recorded")
