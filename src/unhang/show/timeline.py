"""What each rank did when, as arrays that a page can draw. Pure: the same case gives the same arrays.

Legend of shapes: N calls kept, R ranks. Times are in units of `unit_ns` after `zero_ns`; the unit is a microsecond
unless the job ran for longer than 71 minutes, so that every time fits into 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from unhang.model import CallState, Case, CollectiveTable, PendingCall, different, user_frames
from unhang.numeric import np, npt
from unhang.show.stacks import how_it_ended, where

_MOST_PER_RANK = 400
_MOST_CALLS = 1_000_000
_MOST_PENDING = 50
_MOST_MARKERS = 2000

# How a call ended, as the page knows it.
ENDED, ENDED_ABOUT, WAITING, FAILED = range(4)

Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Marker:
    """An event of one rank: error, handled, exit. `at` is in units."""

    rank: int
    at: int
    kind: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """Calls of all ranks, sorted by rank and order of issue. Columns of shape [N], all unsigned 32-bit.

    `start`, `length`: units. `kind`: index into `kinds`. `end`: ENDED, ENDED_ABOUT, WAITING or FAILED. `peer`: rank + 1,
    0 for none. `offsets` [R+1]: where each rank of `ranks` begins.
    """

    columns: Mapping[str, npt.NDArray[np.uint32]]
    offsets: npt.NDArray[np.uint32]
    ranks: tuple[int, ...]
    kinds: tuple[Mapping[str, str], ...] = ()
    wheres: tuple[str, ...] = ()
    steps: tuple[int | None, ...] = ()
    markers: tuple[Marker, ...] = ()
    zero_ns: int = 0
    unit_ns: int = 1000
    end: int = 0
    onset: int | None = None
    onset_name: str = "onset"
    focus: tuple[int, int] = (0, 0)
    most_per_rank: int = _MOST_PER_RANK
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.columns["start"])


@dataclass
class _Calls:
    """Calls of the table and pending calls in one shape, before times become units. All arrays [N]."""

    rank: Ints
    start: Ints
    finish: Ints
    seq: Ints
    kind: Ints
    peer: Ints
    state: Ints


def most_per_rank(ranks: int) -> int:
    """How many calls of each rank are kept, so that the page stays of a size that a browser opens."""
    return min(_MOST_PER_RANK, max(20, _MOST_CALLS // max(ranks, 1)))


def _kept(table: CollectiveTable, most: int) -> Ints:
    """Rows to show, by rank and order of issue: the last of each rank, and what is open however old it is."""
    order = np.lexsort((table["record_id"], table["rank"]))
    order = order[table["created_ns"][order] > 0]
    rank_N = table["rank"][order]
    place_N = np.arange(len(order))
    from_end_N = np.searchsorted(rank_N, rank_N, side="right") - 1 - place_N
    open_N = np.isin(table["state"][order], (CallState.SCHEDULED, CallState.STARTED))
    before_N = np.concatenate(([0], np.cumsum(open_N)))[:-1]
    nth_open_N = before_N - before_N[np.searchsorted(rank_N, rank_N, side="left")]
    kept: Ints = order[(from_end_N < most) | (open_N & (nth_open_N < _MOST_PENDING))]
    return kept


def _sizes_text(table: CollectiveTable, sizes: int, dtype: int) -> str:
    shapes = table.sizes[sizes]
    text = ", ".join("x".join(map(str, s)) or "scalar" for s in shapes[:4]) + (", ..." if len(shapes) > 4 else "")
    return f"{text} {table.dtypes[dtype]}".strip()


def _kinds(table: CollectiveTable, rows: Ints) -> tuple[Ints, list[dict[str, str]]]:
    """Numbers equal descriptions of calls equally; a job has thousands of groups, but few that are called differently.

    The numbers follow the descriptions, not the table's codes: those depend on which of the reading threads was first.
    """
    group_G, groups = _numbered([str(group) for group in table.groups])
    user = [next(iter(user_frames(stack)), "") for stack in table.stacks]
    place_F, places = _numbered(["", *map(str, user)])
    columns = [
        table["op"][rows].astype(np.int64),
        group_G[table["group"][rows]],
        table["in_sizes"][rows].astype(np.int64),
        table["dtype"][rows].astype(np.int64),
        place_F[table["frames"][rows] + 1],
    ]
    key_N: Ints = np.zeros(len(rows), dtype=np.int64)
    for column in columns:
        key_N = np.unique(key_N * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].astype(np.int64)
    _, first = np.unique(key_N, return_index=True)
    abouts = []
    for row in first.tolist():
        op, group, sizes, dtype, place = (int(column[row]) for column in columns)
        abouts.append((table.ops[op], groups[group], _sizes_text(table, sizes, dtype), places[place]))
    kinds = sorted(set(abouts))
    numbers = {about: number for number, about in enumerate(kinds)}
    number_K: Ints = np.array([numbers[about] for about in abouts], dtype=np.int64)
    return number_K[key_N], [dict(zip(("op", "group", "sizes", "at"), about, strict=True)) for about in kinds]


def _numbered(texts: Sequence[str]) -> tuple[Ints, list[str]]:
    """The number of each text, and the texts without repetition."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64), list(numbers)


def _of_table(table: CollectiveTable, rows: Ints) -> tuple[_Calls, list[dict[str, str]]]:
    kind_N, kinds = _kinds(table, rows)
    of = {
        "rank": "rank",
        "start": "created_ns",
        "finish": "completed_ns",
        "seq": "seq",
        "peer": "peer",
        "state": "state",
    }
    columns = {field: table[name][rows].astype(np.int64) for field, name in of.items()}
    return _Calls(kind=kind_N, **columns), kinds


def _pending(case: Case) -> list[tuple[int, PendingCall]]:
    """Calls that the flight recorder does not show: all that are under way and the last ones that ended."""
    found: list[tuple[int, PendingCall]] = []
    for rank in case.world:
        evidence = case.ranks.get(rank)
        calls = sorted(evidence.pending if evidence else (), key=lambda call: call.started_ns)
        kept = [call for call in calls if call.ended_ns is None][:_MOST_PENDING]
        kept += [call for call in calls if call.ended_ns is not None][-_MOST_PENDING:]
        found.extend((rank, call) for call in kept if call.started_ns > 0)
    return found


def _with_pending(calls: _Calls, kinds: list[dict[str, str]], case: Case) -> _Calls:
    pending = _pending(case)
    if not pending:
        return calls
    numbers: dict[tuple[str, ...], int] = {}
    own = []
    for _, call in pending:
        user = user_frames(call.frames)
        about = (call.kind, call.group, call.detail, str(user[0]) if user else "")
        own.append(len(kinds) + numbers.setdefault(about, len(numbers)))
    kinds.extend(dict(zip(("op", "group", "sizes", "at"), about, strict=True)) for about in numbers)
    more = {
        "rank": [rank for rank, _ in pending],
        "start": [call.started_ns for _, call in pending],
        "finish": [call.ended_ns or 0 for _, call in pending],
        "seq": [call.index for _, call in pending],
        "kind": own,
        "peer": [-1 if call.peer is None else call.peer for _, call in pending],
        "state": [int(CallState.COMPLETED if call.ended_ns else CallState.STARTED) for _, call in pending],
    }
    joined = {k: np.concatenate((getattr(calls, k), np.array(v, dtype=np.int64))) for k, v in more.items()}
    order = np.lexsort((joined["start"], joined["rank"]))
    return _Calls(**{name: column[order] for name, column in joined.items()})


def _alive_until(case: Case, calls: _Calls, last_ns: int) -> Ints:
    """The end of each call's rank: a process that is gone waits no longer."""
    until_N = np.full(len(calls.rank), last_ns, dtype=np.int64)
    for rank, evidence in case.ranks.items():
        if evidence.exit and evidence.exit.time_ns > 0:
            of_rank = slice(*np.searchsorted(calls.rank, np.array([rank, rank + 1], calls.rank.dtype)))
            until_N[of_rank] = evidence.exit.time_ns
    return until_N


def _ends(calls: _Calls, until_N: Ints, last_ns: int) -> tuple[Ints, Ints]:
    """(finish in ns, how it ended) of each call; what did not end is drawn until its rank ended.

    Where the completion time is not known, as on gloo, a call is drawn to the next one of its rank, but no longer than
    four usual gaps between calls: the drawing must not claim a wait that nobody saw.
    """
    done_N = (calls.state == CallState.COMPLETED) | (calls.state == CallState.FAILED)
    next_N = np.append(calls.start[1:], last_ns)
    next_N[np.append(calls.rank[1:] != calls.rank[:-1], True)] = last_ns
    gap_N = np.maximum(next_N - calls.start, 0)
    usual = int(np.median(gap_N[done_N])) if done_N.any() else 0
    guess_N = calls.start + np.minimum(gap_N, max(4 * usual, 1_000_000))
    known_N = calls.finish > 0
    finish_N = np.where(known_N, calls.finish, np.where(done_N, guess_N, until_N))
    end_N = np.where(done_N, np.where(known_N, ENDED, ENDED_ABOUT), WAITING)
    end_N = np.where(calls.state == CallState.FAILED, FAILED, end_N)
    return np.maximum(finish_N, calls.start), end_N


def _events(case: Case) -> list[tuple[int, int, str, str]]:
    """(rank, time in ns, kind, text) of errors and exits."""
    found: list[tuple[int, int, str, str]] = []
    for rank, evidence in ((r, case.ranks[r]) for r in case.world if r in case.ranks):
        if evidence.error and evidence.error.time_ns > 0:
            found.append((rank, evidence.error.time_ns, "error", evidence.error.text))
        timed = [h for h in evidence.handled[:8] if h.time_ns > 0]
        found.extend((rank, h.time_ns, "handled", f"handled {h.type}: {h.message}") for h in timed)
        if evidence.exit and evidence.exit.time_ns > 0:
            found.append((rank, evidence.exit.time_ns, "exit", how_it_ended(evidence.exit)))
    return sorted(found, key=lambda event: (event[2] != "error", event[1], event[0]))[:_MOST_MARKERS]


def _onset_ns(case: Case, calls: _Calls, errors: list[int]) -> tuple[int | None, str]:
    """When it began, and what to call that: what the watcher saw, the first error, the oldest call that never ended."""
    if case.hang is not None and case.hang.onset_s is not None and case.job.started_ns > 0:
        return case.job.started_ns + int(case.hang.onset_s * 1e9), "onset"
    if errors and case.hang is None:
        return min(errors), "first error"
    waiting = calls.start[(calls.state == CallState.SCHEDULED) | (calls.state == CallState.STARTED)]
    return (int(waiting.min()), "oldest wait") if len(waiting) else (None, "")


def _last_ns(case: Case, calls: _Calls, times: list[int], onset_ns: int | None) -> int:
    last = max([*times, int(calls.start.max(initial=0)), int(calls.finish.max(initial=0))], default=0)
    if case.hang is not None and case.hang.detected_after_s is not None and onset_ns is not None:
        last = max(last, onset_ns + int(case.hang.detected_after_s * 1e9))
    return last


def _focus(calls: _Calls, onset_ns: int | None, zero_ns: int, last_ns: int) -> tuple[int, int]:
    """The last dozen calls of a usual rank before the onset, and half as long after it.

    Where ranks begin to wait one after the other, it goes on until most of them wait, though at most for as long again.
    """
    around = 12
    before = calls.start if onset_ns is None else calls.start[calls.start <= onset_ns]
    ranks = len(different(calls.rank))
    if not len(before) or not ranks:
        return zero_ns, last_ns
    onset = last_ns if onset_ns is None else onset_ns
    first = int(np.partition(before, -min(len(before), around * ranks))[-min(len(before), around * ranks)])
    span = max(onset - first, 1_000_000)
    waits = calls.start[(calls.state == CallState.SCHEDULED) | (calls.state == CallState.STARTED)]
    most_wait = int(np.quantile(waits, 0.75)) if len(waits) else onset
    after = min(max(span // 2, most_wait - onset + span // 4), span + span // 2)
    return max(zero_ns, first - span // 20), min(last_ns, onset + after)


def _origin(case: Case, calls: _Calls, times: list[int]) -> int:
    """Zero of the time axis: the start of the job, if it lies within an hour before the first call that is shown. `times`: of events."""
    first = int(calls.start.min(initial=np.iinfo(np.int64).max))
    started = case.job.started_ns
    if not len(calls.start):
        return started if started > 0 else min(times, default=0)
    return started if 0 < started <= first and first - started < 3_600_000_000_000 else first


def _unsigned(values: Any) -> npt.NDArray[np.uint32]:
    return np.clip(np.asarray(values, dtype=np.int64), 0, 2**32 - 1).astype(np.uint32)


def timeline(case: Case) -> Timeline:
    """The calls, events and places of all ranks of a case, bounded in size."""
    ranks = tuple(sorted({*case.world, *case.calls.ranks}))
    most = most_per_rank(len(ranks))
    rows = _kept(case.calls, most)
    calls, kinds = _of_table(case.calls, rows)
    calls = _with_pending(calls, kinds, case)
    events = _events(case)
    onset_ns, onset_name = _onset_ns(case, calls, [time for _, time, kind, _ in events if kind == "error"])
    times = [time for _, time, _, _ in events]
    zero_ns = _origin(case, calls, times)
    last_ns = max(zero_ns, _last_ns(case, calls, times, onset_ns))
    last_ns += max((last_ns - zero_ns) // 50, 1_000_000)
    unit_ns = max(1000, (last_ns - zero_ns) // (2**32 - 2) + 1)
    finish_N, end_N = _ends(calls, _alive_until(case, calls, last_ns), last_ns)
    focus = _focus(calls, onset_ns, zero_ns, last_ns)
    start_N = _unsigned((calls.start - zero_ns) // unit_ns)
    columns = {
        "start": start_N,
        "length": _unsigned((finish_N - zero_ns) // unit_ns - start_N),
        "kind": _unsigned(calls.kind),
        "seq": _unsigned(calls.seq),
        "end": _unsigned(end_N),
        "peer": _unsigned(calls.peer + 1),
    }
    evidence = [case.ranks.get(rank) for rank in ranks]
    return Timeline(
        columns=columns,
        offsets=_unsigned(np.searchsorted(calls.rank, [*ranks, (ranks[-1] if ranks else 0) + 1])),
        ranks=ranks,
        kinds=tuple(kinds),
        wheres=tuple(where(e) for e in evidence),
        steps=tuple(e.steps if e else None for e in evidence),
        markers=tuple(Marker(r, max(0, t - zero_ns) // unit_ns, k, text) for r, t, k, text in events),
        zero_ns=zero_ns,
        unit_ns=unit_ns,
        end=(last_ns - zero_ns) // unit_ns,
        onset=None if onset_ns is None else max(0, onset_ns - zero_ns) // unit_ns,
        onset_name=onset_name,
        focus=((focus[0] - zero_ns) // unit_ns, (focus[1] - zero_ns) // unit_ns),
        most_per_rank=most,
        left_out=len(case.calls) - len(rows),
    )
