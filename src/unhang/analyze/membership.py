"""Which ranks left a dump, and who belongs to groups of which that is not recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from unhang.model import Case, CollectiveTable, RankEvidence, different

_NO_PURPOSE = ("", "undefined")


def ranks_with_dump(case: Case) -> frozenset[int]:
    """The ranks that left a dump, be it without a call: it tells of groups, or of open calls where none is open, or of nothing."""
    table = case.calls
    known_by_dump = frozenset(r for r, e in case.ranks.items() if _is_known_by_its_dump_alone(e))
    recorded = frozenset(different(table["rank"], table.progress["rank"]).tolist())
    return recorded | table.active_ranks | known_by_dump


def _is_known_by_its_dump_alone(evidence: RankEvidence) -> bool:
    """Whether a readable dump is all that there is of a rank; what `unhang` itself gathers names the process."""
    e = evidence
    seen = e.identity.pid is not None or e.stacks or e.state or e.error or e.handled or e.exit or e.pending
    return not seen and not e.unavailable


def members_by_exclusion(table: CollectiveTable, everybody: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Group -> all its members, where it is not recorded and one that never made a call of it is told by the other groups.

    Groups of one purpose (description) divide the ranks evenly. Where all but one are equally large, the ranks that are in
    none belong to the one that lacks as many. Where several lack members, ranks that made no call at all are counted to each
    of them: they are missing in one. `everybody`: all ranks of the job; nothing is told of one that may have lost calls.
    """
    if all(g.ranks for g in table.groups):
        return {}
    seen: dict[int, set[int]] = {}
    for group, rank in {*zip(table["group"].tolist(), table["rank"].tolist(), strict=True)}:
        seen.setdefault(group, set()).add(rank)
    kinds: dict[str, list[int]] = {}
    for number, group in enumerate(table.groups):
        if number in seen and not group.ranks and group.desc not in _NO_PURPOSE:
            kinds.setdefault(group.desc, []).append(number)
    found: dict[int, tuple[int, ...]] = {}
    with_calls = set().union(*seen.values())
    for groups in kinds.values():
        size = max(len(seen[g]) for g in groups)
        placed = {rank for g in groups for rank in seen[g]}
        lacking = [g for g in groups if len(seen[g]) < size]
        others = set(everybody) - placed
        is_divided = sum(len(seen[g]) for g in groups) == len(placed) and size * len(groups) == len(placed | others)
        is_told = len(lacking) == 1 or others.isdisjoint(with_calls)
        if is_told and is_divided and others.isdisjoint(table.wrapped_ranks | table.active_ranks):
            found.update({g: tuple(sorted(seen[g] | others)) for g in lacking})
    return found
