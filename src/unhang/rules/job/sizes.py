"""Rules on calls whose tensors or roots do not fit each other: they hang, fail, or complete and mean different things on the ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from unhang.analyze.calls.align import StuckCollective, Unlike, calls_at, majority, members_of
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.positions import bare_op, numels
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.program.callpath import innermost, user_path
from unhang.analyze.program.sets import loop_over_set
from unhang.analyze.situation import Situation
from unhang.analyze.waits.order import in_turns, is_of_size_alone, is_thread_race
from unhang.model import CallState, CollectiveCall, CollectiveTable, EvidenceLine, Fix, Frame, grouped, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import of_skipped_part
from unhang.rules.base import Found, Names, rule
from unhang.rules.framework_advice import of_guarded_update, of_sets_in_turn
from unhang.rules.job.pairs import open_transfers
from unhang.rules.log_lines import found_in, quote
from unhang.rules.remedies import of_any_sender, one_width

_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
_ROOT_NAMES = ("src", "dst", "group_src", "group_dst")
_BUSY_SHARE = 0.3
_GATHERS = ("_all_gather_base", "all_gather_into_tensor")
_OF_CONTENT = (*_GATHERS, "all_gather", "allgather", "gather")
_HOOKS, _SHARDED = "/ddp_comm_hooks/", "/fsdp/_fully_shard/"
_OF_PARTS = ("all_to_all", "gather", "scatter", "all_gather")
_SCATTERS = ("_reduce_scatter_base", "reduce_scatter_tensor")


@rule("size-mismatch", needs=("calls",))
def size_mismatch(s: Situation) -> Found | None:
    """The divergence in which only size or dtype differ."""
    d = s.divergence
    if d is None or not is_of_size_alone(s, d) or is_thread_race(s, d):
        return None
    frame = (d.odd_path or d.reference_path or (None,))[-1]
    by_content = _differ_by_content(d.odd_call, d.reference_call)
    is_sure, culprits = d.has_majority or by_content, () if by_content else d.culprits
    words = {
        "odd": w.name_ranks(d.odd),
        "mine": w.name_call(d.odd_call),
        "others": w.name_ranks(d.reference),
        "theirs": w.name_call(d.reference_call),
        "seq": d.seq,
        "group": d.group,
        "line": w.place(frame),
        "unsure": "" if is_sure else " There is no majority: either size may be the wrong one.",
    }
    dim = _other_dimension(d.odd_call, d.reference_call)
    words |= {
        "dim": dim or 0,
        "inner": "0, 0, " * (len(d.reference_call.in_sizes[0]) - 1 - dim) if dim is not None else "",
    }
    said = [line for line in s.case.log if "doesn't match expected size" in line.text][:1]
    if (over := loop_over_set(d.odd_path)) is not None:
        return _in_order_of_set(s, d, *over, words)
    if (turns := in_turns(s, d)) is not None:
        return _in_order_of_set(s, d, *turns, words, "turns", "collective-order-race")
    return Found(
        0.94 if is_sure else 0.45,
        culprits,
        (*w.both_sides(d), *(EvidenceLine("output", line.text, line.source.line) for line in said)),
        words,
        "content" if by_content else "",
        fixes_of(d, by_content, dim),
        **w.at_fork(d, frame),
    )


def fixes_of(d: Divergence, by_content: bool, dim: int | None) -> tuple[str | Fix, ...]:
    """The names of the fixes: of the hook that made the call, of what is gathered, else where to look."""
    if (known := of_sets_in_turn(d) or of_guarded_update(d)) is not None:
        return (known,)
    files = [f.file for call in (d.odd_call, d.reference_call) for f in call.frames or ()]
    if any(_SHARDED in file for file in files):  # FSDP reduces the gradients that there are
        is_gather = bare_op(d.reference_call.op) == "all_gather"
        return (*(() if is_gather else of_skipped_part(d.location)), "same gradients")
    if any(_HOOKS in file for file in files):
        return ("hook", "shape")
    return ("pad",) if dim is not None and (by_content or "gather" in d.reference_call.op) else ("shape",)


def _in_order_of_set(
    s: Situation,
    d: Divergence,
    head: Frame,
    over: str,
    words: dict[str, object],
    say: str = "set",
    cause: str = "code-divergence",
) -> Found:
    """Each rank goes through a set, or a list, in its own order: no rank is wrong, and the sizes are those of other members."""
    return Found(
        0.9,
        (),
        (*w.both_sides(d), *w.code_line(head, "loop")),
        {**words, "loop": w.place(head), "over": over},
        say,
        ("sorted" if say == "set" else "one order",),
        **w.at_fork(d, head),
        cause=cause,
    )


def _differ_by_content(mine: CollectiveCall, theirs: CollectiveCall) -> bool:
    """Whether what is gathered differs behind its first dimension: each rank has padded what it holds to its own longest.

    The first dimension counts samples: who has fewer there was given fewer.
    """
    if bare_op(mine.op) not in _OF_CONTENT or not len(mine.in_sizes) == len(theirs.in_sizes) == 1:
        return False
    own, other = mine.in_sizes[0], theirs.in_sizes[0]
    return 1 < len(own) == len(other) and own[0] == other[0] and mine.dtype == theirs.dtype


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
    op, members = bare_op(call.op), call.group.size
    put_in, out = sum(numels(call.in_sizes)), sum(numels(call.out_sizes))
    if not (members and put_in and out):
        return True
    if op in _GATHERS:
        return out == put_in * members
    return put_in == out * members if op in _SCATTERS else True


def _does_not_fit(s: Situation, stuck: StuckCollective, wrong: tuple[int, ...]) -> Found:
    call = stuck.calls[wrong[0]]
    path, members = user_path(call.frames), call.group.size
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
        **w.at_call(call, innermost(path)),
    )


@rule("gloo-sizes")
def gloo_sizes(s: Situation) -> Found | None:
    """Gloo's failed check: by the log alone, or in the last call of all ranks, whose parts each rank sizes itself. It does not tell which rank is wrong."""
    events = s.events.of("gloo.size_mismatch")
    if not events or s.divergence is not None:
        return None
    call = _last_of_all(s) if len(s.case.calls) else None
    is_of_parts = call is not None and bare_op(call.op).startswith(_OF_PARTS)
    if not is_of_parts and _has_open_collective(s.case.calls):
        return None
    if call is None or not is_of_parts:
        at = _aborted_at(s)
        pad = ((of_any_sender(at) or one_width(str(Path(at.file).parent))) if at else None) or "pad"
        return found_in(s, events, 0.8, (), say="log", fixes=(pad, "see"), location=at)
    path = user_path(call.frames)
    words = {"call": f"{w.name_call(call)} #{call.seq}", "at": w.at(innermost(path))}
    lines = (*quote(events, 2), w.path_line(call.rank, f"#{call.seq} {w.name_call(call)}", path))
    words["line"] = w.place(innermost(path))
    fixes = ("counts",) if bare_op(call.op).startswith("all_to_all") else ("pad",)
    return Found(0.85, (), lines, words, "call", fixes, **w.at_call(call, innermost(path)))


def _has_open_collective(table: CollectiveTable) -> bool:
    """Whether a rank was in a collective that is recorded; else it was in a transfer, of which sizes are not."""
    if not len(table):
        return False
    return bool((table["state"][table.rows(is_p2p=0)] < CallState.COMPLETED).any())


def _aborted_at(s: Situation) -> Frame | None:
    """The line of the one rank that gloo aborted, where its stack was written: there it got what it did not expect."""
    ends = [e.exit for e in s.case.ranks.values() if e.exit is not None and e.exit.code == -signal.SIGABRT]
    frames = user_frames(ends[0].frames) if len(ends) == 1 else ()
    return frames[0] if frames else None


def _last_of_all(s: Situation) -> CollectiveCall | None:
    """The call that every rank made last, if it is one and the same; those that had their part of it may have begun one more."""
    rows = [s.case.calls.rank_rows(rank) for rank in s.case.world]
    if not rows or any(r.stop == r.start for r in rows):
        return None
    ends = [s.case.calls.call(r.stop - 1) for r in rows]
    first = min(ends, key=lambda c: c.seq)
    calls = calls_at(s.index, s.case.calls.groups.index(first.group), first.seq)
    is_one = {bare_op(c.op) for c in calls.values()} == {bare_op(first.op)} and set(calls) == set(s.case.world)
    return first if is_one and all(c.group == first.group and c.seq <= first.seq + 1 for c in ends) else None


@rule("roots-disagree", needs=("calls", "stacks"))
def roots_disagree(s: Situation) -> Iterator[Found]:
    """Accused is the minority, where the roots are known."""
    if s.divergence is not None or s.primary_failure is not None or s.case.hang is None or not s.waits.roots:
        return
    found = [call for rank in s.waits.roots if (call := _held_in(s, rank)) is not None]
    if len(found) < 2 or len(found) < len(s.waits.roots) or len({(c.group.name, c.seq) for c in found}) > 1:
        return
    ranks, first = tuple(sorted(c.rank for c in found)), found[0]
    calls = calls_at(s.index, s.case.calls.groups.index(first.group), first.seq)
    recorded = {r: str(c.root) for r, c in calls.items() if c.root is not None}
    roots = recorded if len(recorded) == len(calls) else _roots(s, ranks)
    differ = len({*roots.values()}) > 1
    _, odd, has_majority = majority(roots) if differ else ((), (), False)
    culprits = odd if has_majority else ()
    frames = user_path(first.frames) or stack_path(s.case, first.rank) or ()
    frame = innermost(frames)
    done = [r for r, c in calls.items() if c.state is CallState.COMPLETED]
    words = {
        "who": w.name_ranks(ranks),
        "wait": w.verb(ranks, "waits", "wait"),
        "op": f"{bare_op(first.op)} #{first.seq} of {first.group}",
        "group": first.group,
        "roots": "; ".join(f"rank {r} names {root}" for r, root in sorted(roots.items())),
        "others": f", while {w.name_ranks(done)} {w.verb(done, 'is', 'are')} through" if done else "",
        "lead": w.lead(frame),
    }
    yield Found(
        0.92 if differ else 0.65,
        culprits,
        tuple(line for r in ranks[:3] for line in _in_call(s, r, words["op"], roots)),
        words,
        "known" if differ else "inferred",
        **w.at_call(first, frame),
    )


def _held_in(s: Situation, rank: int) -> CollectiveCall | None:
    """The rooted call in which the rank waits although all have come to it."""
    evidence = s.case.ranks.get(rank)
    if evidence is None or s.activities[rank].kind != "communication":
        return None
    if (state := evidence.state) and (state.state == "T" or (state.cpu_share or 0) > _BUSY_SHARE):
        return None
    for row in s.recorded.fronts.get(rank, ()):
        call = s.case.calls.call(row)
        group = int(s.case.calls["group"][row])
        calls = calls_at(s.index, group, call.seq)
        has_all = set(calls) >= set(members_of(s.index, group))
        if bare_op(call.op) in _WITH_ROOT and has_all and {bare_op(c.op) for c in calls.values()} == {bare_op(call.op)}:
            return call
    return None


def _roots(s: Situation, ranks: Sequence[int]) -> Mapping[int, str]:
    """The root that each of these ranks names, where the variables of torch's own frame are known.

    By one name for all: a rank of the job (`src`) and a rank of the group (`group_src`) are different numbers.
    """
    found: dict[str, dict[int, str]] = {name: {} for name in _ROOT_NAMES}
    for rank in ranks:
        for frame, name, value in s.case.ranks[rank].variables:
            if "torch/distributed/" in frame.file and name in found and value != "None":
                found[name].setdefault(rank, value)
    return max(found.values(), key=len)


def _in_call(s: Situation, rank: int, op: object, roots: Mapping[int, str]) -> Iterable[EvidenceLine]:
    yield EvidenceLine(f"rank {rank} calls", f"in {op}" + (f", root {roots[rank]}" if rank in roots else ""))
    yield from w.stack_lines(s.case.ranks.get(rank), 2)


def _other_dimension(one: CollectiveCall, other: CollectiveCall) -> int | None:
    """The one dimension in which the tensors of two calls differ; None where they do in several, or are not one tensor each."""
    if len(one.in_sizes) != 1 or len(other.in_sizes) != 1 or len(one.in_sizes[0]) != len(other.in_sizes[0]):
        return None
    found = [i for i, (a, b) in enumerate(zip(one.in_sizes[0], other.in_sizes[0], strict=True)) if a != b]
    return found[0] if len(found) == 1 else None


@rule("transfer-mismatch", needs=("calls",))
def transfer_mismatch(s: Situation) -> Iterator[Found]:
    """Each pair of a send and its receive that differ in size or dtype."""
    seen: set[tuple[int, ...]] = set()
    for call in open_transfers(s) if s.judges_waits else ():
        edge = next((e for e in s.waits.edges_of(call.rank) if e.kind == "p2p" and e.mismatch), None)
        other = s.recorded.transfers.get(call.row)
        pair = tuple(sorted((call.rank, call.peer or 0)))
        if edge is not None and other is not None and pair not in seen and edge.targets == (call.peer,):
            seen.add(pair)
            yield _mismatch(s, call, s.case.calls.call(other))


def _mismatch(s: Situation, call: CollectiveCall, other: CollectiveCall) -> Found:
    new = s.departures((call.rank, other.rank))
    culprits = tuple(sorted(new)) if len(new) == 1 else tuple(sorted((call.rank, other.rank)))
    wrong, right = (call, other) if call.rank == culprits[0] else (other, call)
    path, is_sure = user_path(wrong.frames), len(culprits) == 1
    words = {
        "wrong": f"rank {wrong.rank} called {w.name_call(wrong)}",
        "right": f"rank {right.rank} called {w.name_call(right)}",
        "unsure": "" if is_sure else " Nothing tells which side is wrong.",
    }
    evidence = (
        w.path_line(wrong.rank, f"{w.name_call(wrong)} (open)", path),
        w.path_line(right.rank, f"{w.name_call(right)} (open)", user_path(right.frames)),
        EvidenceLine("pair", f"rank {wrong.rank} and rank {right.rank} in {wrong.group}"),
    )
    return Found(0.9 if is_sure else 0.6, culprits, evidence, words, **w.at_call(wrong, innermost(path)))


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
    by_value = grouped((value, rank) for rank, value in found.values.items())
    theirs = found.values[found.reference[0]]
    mine = {value: ranks for value, ranks in by_value.items() if value != theirs}
    words = {
        "odd": w.listed(
            [f"{w.name_ranks(ranks)} {did.format(value)}" for value, ranks in list(mine.items())[:_LEAST_NAMED]]
        ),
        "others": f"{w.name_ranks(found.reference)} {did.format(theirs)}",
        "call": f"{w.name_call(call)} #{call.seq} of {call.group}",
        "line": w.place(innermost(path)),
        "lead": w.lead(innermost(path)),
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
        cause=cause,
        is_root=not _is_in_trouble(s),
        **w.at_call(call, innermost(path)),
    )


def _unknown(found: Unlike) -> Iterator[EvidenceLine]:
    if unknown := sorted(set(found.calls) - set(found.values)):
        yield EvidenceLine("unknown", f"what {w.name_ranks(unknown)} meant was not recorded")
