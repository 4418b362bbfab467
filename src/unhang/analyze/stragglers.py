"""Who comes last to the collectives, and what that costs: progress, but one rank late.

Legend of shapes: P positions of one group, M members; `arrival_PM` in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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


def arrivals(case: Case, group_index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """(`ranks_M`, `arrival_PM`): when each member issued each position that all of them have."""
    table = case.calls
    mask = (table["group"] == group_index) & ~table["is_p2p"]
    ranks, seqs, created = table["rank"][mask], table["seq"][mask], table["created_ns"][mask]
    ranks_m = np.unique(ranks)
    if len(ranks_m) < 2:
        return None
    seqs_u, position = np.unique(seqs, return_inverse=True)
    arrival = np.zeros((len(seqs_u), len(ranks_m)), dtype=np.int64)
    arrival[position, np.searchsorted(ranks_m, ranks)] = created
    return ranks_m, arrival[(arrival > 0).all(axis=1)]


def stragglers(case: Case) -> tuple[Straggler, ...]:
    """Ranks for which the others waited for a large share of the time, again and again."""
    found = []
    for index, group in enumerate(case.calls.groups):
        table = arrivals(case, index)
        if table is not None and len(table[1]) >= MIN_POSITIONS:
            straggler = _of_group(group, *table)
            if straggler is not None and _is_its_own_fault(case, index, straggler.rank):
                found.append(straggler)
    return tuple(sorted(found, key=lambda s: -s.lost_s))


def _is_its_own_fault(case: Case, group_index: int, rank: int) -> bool:
    """Whether the rank's late arrivals began after its previous call had all its members: else it was itself kept waiting."""
    table = case.calls
    rows = table.rows(rank=rank)[-_MOST_ROWS:]
    own = kept = 0
    for before, row in pairwise(rows):
        if table["group"][row] != group_index or table["is_p2p"][row]:
            continue
        same = (table["group"] == table["group"][before]) & (table["seq"] == table["seq"][before])
        free_at = int(table["created_ns"][same & (table["is_p2p"] == table["is_p2p"][before])].max())
        arrived, previous = int(table["created_ns"][row]), int(table["created_ns"][before])
        own += max(0, arrived - max(free_at, previous))
        kept += max(0, min(free_at, arrived) - previous)
    return own > kept


def _union_s(spans_p2: npt.NDArray[np.int64]) -> float:
    """Seconds covered by the spans [second-last arrival, last arrival]; calls in flight together count once."""
    total = reached = 0
    for start, end in spans_p2[np.argsort(spans_p2[:, 0])]:
        total += max(0, int(end) - max(int(start), reached))
        reached = max(reached, int(end))
    return total / 1e9


def _of_group(
    group: ProcessGroup, ranks_m: npt.NDArray[np.int64], arrival_pm: npt.NDArray[np.int64]
) -> Straggler | None:
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
