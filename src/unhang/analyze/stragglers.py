"""Who comes last to the collectives, what that costs, and whether the program gives that rank work of its own.

There is progress, but one rank is late. Of rank 0 alone it may be by design: `if rank == 0: save()` between two calls that all make is how
programs are written, and no fault of a machine or of the data.

Legend of shapes: P positions of one group, M members; `arrival_PM` in nanoseconds.
"""

from __future__ import annotations

import ast
import itertools
from collections import deque
from typing import NamedTuple

from unhang.analyze.calls.align import members_of
from unhang.analyze.calls.positions import CallIndex, Ints
from unhang.analyze.hosts import ON_DEVICE
from unhang.analyze.program.callpath import Path, is_same_function, user_path
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import calls_on, inside, last_name, tree_of
from unhang.model import CallState, Case, CollectiveTable, Frame, ProcessGroup, different, grouped
from unhang.numeric import np, npt

MIN_POSITIONS = 6
# Or in half of all: a few long waits are the work of a rank that others wait for, such as each epoch's saving.
MIN_LATE = 10
MIN_LATENESS_S = 0.05
MIN_SHARE = 0.3
_LEAST_OWN = 0.25  # calls issued ahead hide the greater part of a rank's own time
_LEAST_ENDS, _NOT_SMALL = 2, 0.25
WATCHDOG_NS = 100_000_000
_ONE_LOOK_NS = 5_000_000  # the watchdog takes less to go through the open calls
_MOST_ROWS, _MOST_PEERS = 1000, 8
_LEAST_PACED, _LEAST_GAPS, _MOSTLY = 8, 3, 0.8
_JOIN = "torch/distributed/algorithms/join.py"
_NEVER = 2**63 - 1


class Pace(NamedTuple):
    """How lateness goes on. `kind`: constant, growing, periodic, or "" where it is none of these, or too little is known.

    `first_s`, `last_s`: the lateness of the first and the last quarter; `every`: of how many calls alike one is late.
    """

    kind: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    every: int = 1


class Straggler(NamedTuple):
    """A rank that is last in most collectives. `lost_s` is what the others waited for it, `span_s` the time looked at."""

    rank: int
    group: ProcessGroup
    last_share: float
    median_lateness_s: float
    lost_s: float
    span_s: float
    pace: Pace = Pace()


def _matrix(index: CallIndex, group: int, column: Ints) -> tuple[Ints, Ints] | None:
    """(`ranks_M`, `times_PM`): a time of each member at each position that all of them have; None for one member."""
    rows = index.rows_of(group)
    ranks, seqs = index.table["rank"][rows], index.table["seq"][rows]
    ranks_m = different(ranks)
    if len(ranks_m) < 2:
        return None
    seqs_u, position = np.unique(seqs, return_inverse=True)
    times = np.zeros((len(seqs_u), len(ranks_m)), dtype=np.int64)
    times[position, np.searchsorted(ranks_m, ranks)] = column[rows]
    return ranks_m, times[(times != 0).all(axis=1)]


def clock_offsets(index: CallIndex) -> dict[int, int]:
    """By how many nanoseconds each rank's clock is ahead: a collective ends everywhere at the same moment.

    Empty where the dumps do not tell when calls ended (gloo). Only ranks that groups connect can be compared; the others are
    left out. Ends are seen by a thread that looks ten times a second, so clocks within that count as one.
    """
    table = index.table
    if not table["completed_ns"].any():
        return {}
    groups_of = grouped((rank, number) for number, group in enumerate(table.groups) for rank in group.ranks)
    offsets: dict[int, int] = {}
    seen: set[int] = set()
    for start in sorted(range(len(table.groups)), key=lambda g: -len(table.groups[g].ranks)):
        pending = deque([start])
        while pending:
            number = pending.popleft()
            if number in seen:
                continue
            seen.add(number)
            added = _add_offsets(index, number, offsets)
            pending += [g for r in added for g in groups_of.get(r, ()) if g not in seen]
        if offsets:
            break
    return _without_noise(offsets)


def _add_offsets(index: CallIndex, group: int, offsets: dict[int, int]) -> list[int]:
    """Adds the offsets of the members of a group, against one that is known or the first; returns who is new."""
    members = index.table.groups[group].ranks
    matrix = None if all(r in offsets for r in members) else _matrix(index, group, index.table["completed_ns"])
    if matrix is None or len(matrix[1]) < _LEAST_ENDS:
        return []
    ranks_m, times_pm = matrix[0].tolist(), matrix[1]
    known = next((i for i, r in enumerate(ranks_m) if r in offsets), 0)
    ahead_m = np.median(times_pm - times_pm[:, [known]], axis=0) + offsets.get(ranks_m[known], 0)
    new = {r: int(ahead) for r, ahead in zip(ranks_m, ahead_m.tolist(), strict=True) if r not in offsets}
    offsets.update(new)
    return list(new)


def _without_noise(offsets: dict[int, int]) -> dict[int, int]:
    """Offsets that are not told apart by what the watchdog sees are made equal."""
    found: dict[int, int] = {}
    first = last = 0
    for rank, ahead in sorted(offsets.items(), key=lambda item: item[1]):
        if not found or ahead - last > WATCHDOG_NS:
            first = ahead
        found[rank], last = first, ahead
    return found


def stragglers(case: Case, index: CallIndex | None = None) -> tuple[Straggler, ...]:
    """Ranks for which the others waited for a large share of the time, again and again."""
    index = index or CallIndex(case.calls)
    offsets = clock_offsets(index)
    created, shadows = _on_one_clock(index, offsets), _are_shadows(index.table)
    idles = created + np.maximum(0, index.table["awaited_ns"] - index.table["created_ns"])
    silent = set(case.world) - index.ranks
    cut = _lacking_members(index)
    kept = _may_be_kept_by(case, index, silent, cut)
    candidates = []
    for number, group in enumerate(case.calls.groups):
        matrix, whole = _matrix(index, number, np.where(shadows, 0, created)), _matrix(index, number, created)
        if matrix is None or whole is None or len(matrix[1]) < MIN_POSITIONS or ((silent or cut) and not group.ranks):
            continue  # a member that left no record may have kept the others
        clocks = {offsets.get(r) for r in matrix[0].tolist()}
        if offsets and None in clocks:
            continue
        least_s = MIN_LATENESS_S + (len(clocks) > 1) * WATCHDOG_NS / 1e9
        waits = None if group.backend == ON_DEVICE else _matrix(index, number, np.where(shadows, 0, idles))
        straggler = _of_group(group, *matrix, (waits or matrix)[1], whole[1], least_s, is_one_clock=bool(offsets))
        if straggler is not None and straggler.rank not in kept:
            paced = straggler._replace(pace=_pace_in(index, number, *matrix, straggler.rank))
            candidates.append((paced, matrix[0]))
    all_came = _all_came(index, created) if candidates else created
    found = [s for s, ranks_m in candidates if _is_its_own_fault(index, created, all_came, ranks_m, s)]
    return tuple(sorted(found, key=lambda s: -s.lost_s))


def _are_shadows(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[N]`: calls of a rank that has no inputs left and answers those of the others, as `Join` makes them: it waits by design."""
    exits = [{f.file for f in frames if f.function == "__exit__"} for frames in table.stacks]
    return np.isin(table["frames"], [i for i, files in enumerate(exits) if any(f.endswith(_JOIN) for f in files)])


def _lacking_members(index: CallIndex) -> list[int]:
    """The groups that have fewer members than another one of their purpose, where it is not recorded who belongs to them."""
    counts = {
        number: (group.desc, len(index.last(number)))
        for number, group in enumerate(index.table.groups)
        if not group.ranks and group.desc not in ("", "undefined")
    }
    most: dict[str, int] = {}
    for desc, count in counts.values():
        most[desc] = max(most.get(desc, 0), count)
    return [number for number, (desc, count) in counts.items() if count < most[desc]]


def _may_be_kept_by(case: Case, index: CallIndex, silent: set[int], cut: list[int]) -> set[int]:
    """Ranks that a rank without a record may have kept, directly or through others; a call of all keeps every rank alike.

    `silent`: those without a record, as far as they are known; `cut`: groups that lack a member.
    """
    members = [set(members_of(index, g)) for g in range(len(index.table.groups))] if silent or cut else []
    smaller = [ranks for ranks in members if len(ranks) < len(case.world)]
    kept, before = silent.union(*(members[g] for g in cut)), -1
    while len(kept) > before:
        before = len(kept)
        kept = kept.union(*(ranks for ranks in smaller if not kept.isdisjoint(ranks)))
    return kept


def _on_one_clock(index: CallIndex, offsets: dict[int, int]) -> Ints:
    """`[N]`: when each call was made, on a clock that all ranks share."""
    created: Ints = index.table["created_ns"]
    if not offsets:
        return created
    ranks, of_row = np.unique(index.table["rank"], return_inverse=True)
    ahead = np.array([offsets.get(r, 0) for r in ranks.tolist()], dtype=np.int64)[of_row]
    return np.where(created != 0, created - ahead, 0)


def _is_its_own_fault(index: CallIndex, created: Ints, all_came: Ints, ranks_m: Ints, late: Straggler) -> bool:
    """Whether the late rank spends more time by itself than its peers do: else others keep it, and it passes that on.

    Between the same two moments each rank works for itself or waits, and who keeps the others waits least.
    """
    peers = ranks_m[ranks_m != late.rank]
    peers = peers[:: -(-len(peers) // _MOST_PEERS)].tolist()
    all_rows = map(index.table.rank_rows, (late.rank, *peers))
    rows = [slice(max(of.start, of.stop - _MOST_ROWS), of.stop) for of in all_rows]
    free = [_free_at(index, created, all_came, of) for of in rows]
    begin, end = max(int(created[of.start]) for of in rows), min(int(created[of.stop - 1]) for of in rows)
    if late.rank in index.table.wrapped_ranks or len(free[0]) == _MOST_ROWS:
        begin = max(begin, _freed_of_the_lost(index.table["group"][rows[0]], free[0]))
    own = []
    for of, free_n in zip(rows, free, strict=True):
        lasted = np.minimum(created[of][1:], end) - np.maximum(free_n[:-1], begin)
        own.append(float(np.maximum(0, lasted).sum()))
    return (own[0] - float(np.median(own[1:]))) / max(1, end - begin) > _LEAST_OWN * late.lost_s / late.span_s


def _all_came(index: CallIndex, created: Ints) -> Ints:
    """`[N]`: when all members had come to each call; for ever where that is not recorded."""
    last, came = index.arrivals(created)
    size = np.array([len(g.ranks) for g in index.table.groups] or [0])[index.table["group"]]
    return np.where(came < size, _NEVER, last)


def _free_at(index: CallIndex, created: Ints, all_came: Ints, rows: slice) -> Ints:
    """Until when each call of a rank, or one before it, may keep the rank. For ever where that is not recorded.

    A call keeps it until all members came and, as far as that is known, until it ended: all may have issued it while the
    device of one is kept by an earlier call. A host that ran ahead waits for its oldest call wherever it stands, once no
    more calls may be in flight.
    """
    table = index.table
    ended, is_p2p = table["completed_ns"][rows], table["is_p2p"][rows]
    after = created[rows] + np.maximum(0, ended - table["created_ns"][rows] - _seen_late_ns(ended))  # on one clock
    free = np.where(is_p2p, np.where(ended != 0, after, _NEVER), np.maximum(all_came[rows], after))
    is_open = np.isin(table["state"][rows], (CallState.SCHEDULED, CallState.STARTED))
    free[is_open] = _NEVER
    return np.maximum(free, np.maximum.accumulate(np.where((free < _NEVER) | is_open, free, 0)))


def _seen_late_ns(ended: Ints) -> int:
    """How much later than it ended a call of a rank may be seen to: the watchdog's pause, where ends are mostly so far apart."""
    apart = np.diff(different(ended[ended != 0]))
    looks = apart[apart > _ONE_LOOK_NS]
    return 0 if len(looks) and np.median(looks) < WATCHDOG_NS / 2 else WATCHDOG_NS


def _freed_of_the_lost(group: npt.NDArray[np.int32], free: Ints) -> int:
    """Until when calls that are no longer recorded may keep a rank: those of each group are over before its next one is."""
    return int(free[np.unique(group, return_index=True)[1]].max(initial=0))


def _pace_in(index: CallIndex, group: int, ranks_m: Ints, arrival_pm: Ints, rank: int) -> Pace:
    """How the lateness of a rank goes on, over those calls alike (operation, sizes) that cost most."""
    table, me = index.table, int(np.searchsorted(ranks_m, rank))
    kind = (table["op"].astype(np.int64) << 32) + table["in_sizes"] + 1
    kinds = _matrix(index, group, kind)
    if kinds is None or len(kinds[1]) != len(arrival_pm):
        return Pace()
    kind_p = kinds[1][:, me]
    late_p = (arrival_pm[:, me] - np.delete(arrival_pm, me, axis=1).max(axis=1)) / 1e9
    cost = {k: float(late_p[(kind_p == k) & (late_p > 0)].sum()) for k in different(kind_p).tolist()}
    return pace_of(late_p[kind_p == max(cost, key=lambda k: cost[k])])


def pace_of(late_p: npt.NDArray[np.float64]) -> Pace:
    """How lateness goes on: `[P]` seconds behind the second-last rank, below 0 where another one was last."""
    own = late_p[late_p >= MIN_LATENESS_S]
    if len(late_p) < _LEAST_PACED or len(own) < _LEAST_PACED // 2:
        return Pace()
    is_late = late_p >= max(MIN_LATENESS_S, float(np.median(own)) / 2)
    quarters = [float(np.median(part)) for part in np.array_split(own, 4)]
    first_s, last_s = quarters[0], quarters[-1]
    if (late_p >= MIN_LATENESS_S).mean() >= _MOSTLY:
        if last_s >= 1.5 * first_s and all(b >= 1.08 * a for a, b in itertools.pairwise(quarters)):
            return Pace("growing", first_s, last_s)
        spread = float(np.median(np.abs(own - np.median(own))))
        return Pace("constant", first_s, last_s) if spread <= 0.35 * float(np.median(own)) else Pace()
    gaps = np.diff(np.flatnonzero(is_late))
    every = int(np.median(gaps)) if len(gaps) >= _LEAST_GAPS else 1
    is_regular = every >= 2 and float((np.abs(gaps - every) <= every // 10).mean()) >= _MOSTLY
    return Pace("periodic", first_s, last_s, every) if is_regular else Pace()


def _union_s(spans_p2: Ints) -> tuple[float, int]:
    """Seconds covered by the spans, calls in flight together once, and in how many pieces that are not small beside the longest."""
    pieces, reached = [0], -1
    for start, end in spans_p2[np.argsort(spans_p2[:, 0])].tolist():
        if start > reached:
            pieces.append(0)
        pieces[-1] += max(0, end - max(start, reached))
        reached = max(reached, end)
    return sum(pieces) / 1e9, sum(p >= _NOT_SMALL * max(pieces) > 0 for p in pieces)


def _beyond_the_usual_s(done_p: Ints) -> float:
    """By how much the longest way from one collective to the next exceeds the second longest."""
    ways = np.sort(np.diff(np.sort(done_p)))
    return float(ways[-1] - ways[-2]) / 1e9


def _of_group(
    group: ProcessGroup,
    ranks_m: Ints,
    arrival_pm: Ints,
    idle_pm: Ints,
    whole_pm: Ints,
    least_s: float,
    is_one_clock: bool,
) -> Straggler | None:
    """`idle_pm`: since when each waits for what it has issued, which it may do long after: until then nobody keeps it.

    `whole_pm`: also of the positions of which lateness tells nothing. `is_one_clock`: the arrivals are told on a clock that all members share, as far as that is known.
    """
    others_pm, of_last_p = idle_pm.copy(), np.argmax(arrival_pm, axis=1)
    others_pm[np.arange(len(others_pm)), of_last_p] = 0
    spans_p2 = np.stack((others_pm.max(axis=1), arrival_pm.max(axis=1)), axis=1)
    lateness_p = (spans_p2[:, 1] - spans_p2[:, 0]) / 1e9
    late = lateness_p >= least_s
    if late.sum() < MIN_POSITIONS // 2:
        return None
    last_p = of_last_p[late]
    counts = np.bincount(last_p, minlength=len(ranks_m))
    worst = int(np.argmax(counts))
    if counts[worst] < min(MIN_LATE, len(arrival_pm) / 2):
        return None
    lost, waits = _union_s(spans_p2[late][last_p == worst])
    # Who waits makes no call meanwhile. Waits that all run into each other are a clock that is ahead.
    if not is_one_clock and waits < MIN_POSITIONS // 2:
        return None
    span = float(whole_pm.max() - whole_pm.min()) / 1e9
    share = counts[worst] / late.sum()
    # The start-up and one long stall are no habit: the largest single wait does not count, and hides no other.
    habitual, usual_span = lost - float(lateness_p.max()), span - _beyond_the_usual_s(whole_pm.max(axis=1))
    if share < 0.8 or usual_span <= 0 or habitual / usual_span < MIN_SHARE:
        return None
    median = float(np.median(lateness_p[late][last_p == worst]))
    return Straggler(int(ranks_m[worst]), group, float(share), median, lost, span)


_MOST_CALLS = 200
_SPEAKS = frozenset({"print", "info", "debug", "warning", "log", "write", "set_postfix", "update"})


def own_work(case: Case, late: Straggler) -> Frame | None:
    """The line at which rank 0 begins work of its own before most of the calls to which it comes last; None where the source shows none."""
    if late.rank != 0:
        return None
    table = case.calls
    group = table.groups.index(late.group)
    calls = table.calls(table.rows(rank=0, group=group)[-_MOST_CALLS:])
    waited = _waited_for(case, group, late)
    pairs = [(user_path(a.frames), user_path(b.frames)) for a, b in itertools.pairwise(calls) if b.seq in waited]
    found = [_between(before, here) for before, here in pairs]
    lines = [f for f in found if f is not None]
    return max(set(lines), key=lines.count) if found and len(lines) >= _MOSTLY * len(found) else None


def _waited_for(case: Case, group: int, late: Straggler) -> set[int]:
    """The calls before which the others waited for rank 0 for at least half as long as they do as a rule."""
    table = case.calls
    created = {
        r: dict(zip(table["seq"][rows].tolist(), table["created_ns"][rows].tolist(), strict=True))
        for r in late.group.ranks or case.world
        if len(rows := table.rows(rank=r, group=group))
    }
    mine, others = created.pop(late.rank, {}), list(created.values())
    least_ns = late.median_lateness_s * 5e8
    return {
        seq for seq, ns in mine.items() if (them := [c[seq] for c in others if seq in c]) and ns - max(them) >= least_ns
    }


def _between(before: Path, here: Path) -> Frame | None:
    """The first line between two calls that only rank 0 runs, in the innermost function that both have on their way."""
    shared = [(a, b) for a, b in zip(before, here, strict=False) if is_same_function(a, b)]
    return _first_own(*shared[-1]) if shared else None


def _first_own(left: Frame, right: Frame) -> Frame | None:
    loops = surroundings(right.file, right.line).loops
    if left.line < right.line:
        parts = [range(left.line, right.line + 1)]
    elif loops:  # once around
        parts = [range(left.line, loops[-1].last + 1), range(loops[-1].header, right.line + 1)]
    else:
        return None
    own = (line for part in parts for line in part if _is_own(right.file, line))
    return next((Frame(right.file, line, right.function) for line in own), None)


def _is_own(path: str, line: int) -> bool:
    """Whether only rank 0 runs the line, or a function of the same file that it calls does something on rank 0 alone."""
    names = {last_name(c.func) for c in calls_on(path, line) if c.lineno == line}
    if surroundings(path, line).only_on_rank_zero:
        return not names <= _SPEAKS
    functions = (f for f in inside(tree_of(path), ast.FunctionDef) if f.name in names)
    works = (c for f in functions for c in inside(f, ast.Call) if last_name(c.func) not in _SPEAKS)
    return any(surroundings(path, c.lineno).only_on_rank_zero for c in works)
