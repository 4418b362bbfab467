"""Rules on collectives whose tensors do not fit each other."""

from __future__ import annotations

from unhang.analyze.align import StuckCollective
from unhang.analyze.callpath import user_path
from unhang.analyze.order import is_of_size_alone, is_thread_race
from unhang.analyze.positions import bare_op, numels
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall, EvidenceLine
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import found_in

_GATHERS = ("_all_gather_base", "all_gather_into_tensor")
_SCATTERS = ("_reduce_scatter_base", "reduce_scatter_tensor")


@rule("size-mismatch", needs=("calls",))
def size_mismatch(s: Situation) -> Found | None:
    """The divergence in which only size or dtype differ."""
    d = s.divergence
    if d is None or not is_of_size_alone(s, d) or is_thread_race(s, d):
        return None
    frame = (d.odd_path or d.reference_path or (None,))[-1]
    words = {
        "odd": w.name_ranks(d.odd),
        "give": w.verb(d.odd, "gives", "give"),
        "mine": w.name_call(d.odd_call),
        "others": w.name_ranks(d.reference),
        "others_give": w.verb(d.reference, "gives", "give"),
        "theirs": w.name_call(d.reference_call),
        "seq": d.seq,
        "group": d.group,
        "line": w.place(frame),
        "unsure": "" if d.has_majority else " There is no majority: either size may be the wrong one.",
    }
    said = [line for line in s.case.log if "doesn't match expected size" in line.text][:1]
    return Found(
        0.94 if d.has_majority else 0.45,
        d.culprits,
        (*w.both_sides(d), *(EvidenceLine("output", line.text, line.source.line) for line in said)),
        words,
        victims=s.others(d.culprits),
        location=w.location_of(frame),
        group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
    )


@rule("output-size", needs=("calls",))
def output_size(s: Situation) -> Found | None:
    """The first open call whose output has no room for what the members put in, or the other way round."""
    for stuck in s.stuck if s.divergence is None else ():
        wrong = tuple(r for r, c in stuck.calls.items() if c.state is not CallState.COMPLETED and not _has_room(c))
        if wrong:
            return _does_not_fit(s, stuck, wrong)
    return None


def _has_room(call: CollectiveCall) -> bool:
    """Whether what comes out is as large as what the members put in (or the other way round); true where not known."""
    op, members = bare_op(call.op), len(call.group.ranks)
    put_in, out = sum(numels(call.in_sizes)), sum(numels(call.out_sizes))
    if not (members and put_in and out):
        return True
    if op in _GATHERS:
        return out == put_in * members
    return put_in == out * members if op in _SCATTERS else True


def _does_not_fit(s: Situation, stuck: StuckCollective, wrong: tuple[int, ...]) -> Found:
    call = stuck.calls[wrong[0]]
    path, members = user_path(call.frames), len(call.group.ranks)
    sizes = f"{sum(numels(call.in_sizes))} elements in, {sum(numels(call.out_sizes))} out, {members} members"
    words = {
        "who": w.name_ranks(wrong),
        "give": w.verb(wrong, "gives", "give"),
        "op": bare_op(call.op),
        "seq": call.seq,
        "group": call.group,
        "sizes": sizes,
        "members": members,
    }
    return Found(
        0.93,
        wrong,
        (w.path_line(call.rank, f"#{call.seq} {w.name_call(call)}", path), EvidenceLine("sizes", sizes)),
        words,
        victims=s.others(wrong),
        location=w.location_of(path[-1] if path else None),
        group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
    )


@rule("gloo-sizes")
def gloo_sizes(s: Situation) -> Found | None:
    """Gloo's failed check, where no recorded calls tell more; it does not tell which rank is wrong."""
    events = s.events.of("gloo.size_mismatch") if not len(s.case.calls) else ()
    return found_in(s, events, 0.8, ()) if events else None
