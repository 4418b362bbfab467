"""Who comes last to the collectives, and what that costs: progress, but one rank late.

Legend of shapes: P positions of one group, M members; `arrival_PM` in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unhang.analyze.positions import CallIndex, Ints
from unhang.model import Case, ProcessGroup

MIN_POSITIONS = 6
MIN_LATENESS_S = 0.05
MIN_SHARE = 0.3
_MOST_ROWS = 1000


@dataclass(frozen=True)
class Straggler:
    """A rank that is last in most collectives. `lost_s` is what the others waited for it, `span_s` the time looked at."""

    rank: int
    group: ProcessGroup
    last_share: float
    median_lateness_s: float
    lost_s: float
    span_s: float


def _matrix(index: CallIndex, group: int, column: Ints) -> tuple[Ints, Ints] | None:
    """(`ranks_M`, `times_PM`): a time of each member at each position that all of them have; None for one member."""
    rows = index.rows_of(group)
    ranks, seqs = index.table["rank"][rows], index.table["seq"][rows]
    ranks_m = np.unique(ranks)
    if len(ranks_m) < 2:
        return None
    seqs_u, position = np.unique(seqs, return_inverse=True)
    times = np.zeros((len(seqs_u), len(ranks_m)), dtype=np.int64)
    times[position, np.searchsorted(ranks_m, ranks)] = column[rows]
    return ranks_m, times[(times != 0).all(axis=1)]


def clock_offsets(index: CallIndex) -> dict[int, int]:
    """By how many nanoseconds each rank's clock is ahead: a collective ends everywhere at the same moment.

    Empty where the dumps do not tell when calls ended (gloo). The largest group of a rank decides.
    """
    completed = index.table["completed_ns"]
    if not completed.any():
        return {}
    offsets: dict[int, int] = {}
    for group in sorted(range(len(index.table.groups)), key=lambda g: -len(index.table.groups[g].ranks)):
        members = index.table.groups[group].ranks
        if members and all(r in offsets for r in members):
            continue
        matrix = _matrix(index, group, completed)
        if matrix is None or len(matrix[1]) < MIN_POSITIONS:
            continue
        ranks_m, times_pm = matrix
        ahead_m = np.median(times_pm - np.median(times_pm, axis=1, keepdims=True), axis=0)
        for rank, ahead in zip(ranks_m.tolist(), ahead_m.tolist(), strict=True):
            offsets.setdefault(rank, int(ahead))
    return offsets


def stragglers(case: Case, index: CallIndex | None = None) -> tuple[Straggler, ...]:
    """Ranks for which the others waited for a large share of the time, again and again."""
    index = index or CallIndex(case.calls)
    created = _on_one_clock(index)
    found = []
    for number, group in enumerate(case.calls.groups):
        matrix = _matrix(index, number, created)
        if matrix is not None and len(matrix[1]) >= MIN_POSITIONS:
            straggler = _of_group(group, *matrix)
            if straggler is not None and _is_its_own_fault(index, created, number, straggler.rank):
                found.append(straggler)
    return tuple(sorted(found, key=lambda s: -s.lost_s))


def _on_one_clock(index: CallIndex) -> Ints:
    """`[N]`: when each call was made, on a clock that all ranks share."""
    created: Ints = index.table["created_ns"]
    offsets = clock_offsets(index)
    if not offsets:
        return created
    ranks, of_row = np.unique(index.table["rank"], return_inverse=True)
    ahead = np.array([offsets.get(r, 0) for r in ranks.tolist()], dtype=np.int64)[of_row]
    return np.where(created != 0, created - ahead, 0)


def _is_its_own_fault(index: CallIndex, created: Ints, group: int, rank: int) -> bool:
    """Whether the rank's late arrivals began after its previous call had all its members: else it was itself kept waiting."""
    table = index.table
    rows = table.rank_rows(rank)
    own = kept = 0
    for row in range(max(rows.start + 1, rows.stop - _MOST_ROWS), rows.stop):
        before = row - 1
        if table["group"][row] != group or table["is_p2p"][row]:
            continue
        free_at = arrived_before = int(created[before])
        if not table["is_p2p"][before]:
            position = index.position(int(table["group"][before]), int(table["seq"][before]))
            if position is not None:
                free_at = int(created[position.rows].max())
                if len(position.ranks) < len(table.groups[position.group].ranks):
                    free_at = int(created[row])  # a member left no record: it may have kept this one
        arrived = int(created[row])
        own += max(0, arrived - max(free_at, arrived_before))
        kept += max(0, min(free_at, arrived) - arrived_before)
    return own > kept


def _union_s(spans_p2: Ints) -> float:
    """Seconds covered by the spans [second-last arrival, last arrival]; calls in flight together count once."""
    total = reached = 0
    for start, end in spans_p2[np.argsort(spans_p2[:, 0])]:
        total += max(0, int(end) - max(int(start), reached))
        reached = max(reached, int(end))
    return total / 1e9


def _of_group(group: ProcessGroup, ranks_m: Ints, arrival_pm: Ints) -> Straggler | None:
    ordered = np.sort(arrival_pm, axis=1)
    lateness_p = (ordered[:, -1] - ordered[:, -2]) / 1e9
    late = lateness_p >= MIN_LATENESS_S
    if late.sum() < MIN_POSITIONS // 2:
        return None
    last_p = np.argmax(arrival_pm, axis=1)[late]
    counts = np.bincount(last_p, minlength=len(ranks_m))
    worst = int(np.argmax(counts))
    lost = _union_s(ordered[late][last_p == worst][:, -2:])
    span = float(arrival_pm.max() - arrival_pm.min()) / 1e9
    share = counts[worst] / late.sum()
    # The start-up and one long stall are no habit: the largest single wait does not count.
    habitual = lost - float(lateness_p.max())
    if share < 0.8 or span <= 0 or habitual / span < MIN_SHARE:
        return None
    median = float(np.median(lateness_p[late][last_p == worst]))
    return Straggler(int(ranks_m[worst]), group, float(share), median, lost, span)
