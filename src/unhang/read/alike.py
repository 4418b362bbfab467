"""A job of which not all ranks were read: those that were stand for the others (`alike.json` in the run directory)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from unhang.model import Case, CollectiveTable, ProcessGroup, Unavailable
from unhang.numeric import np
from unhang.read.fields import texts, whole, wholes

ALIKE = "alike.json"


class Alike(NamedTuple):
    """`read`: the ranks that stand for all of `world`, with those of which nobody told; `unseen`: those that nobody could ask.

    `is_whole`: every kind of rank is among those that were read; else nothing is known of the others. `nodes`: the folders that were read.
    """

    world: int
    read: tuple[int, ...]
    unseen: tuple[int, ...]
    is_whole: bool
    nodes: tuple[str, ...] = ()

    @property
    def expected(self) -> set[int]:
        """Every rank that would be there if all was well."""
        return {*self.read, *self.unseen} if self.is_whole else set(range(self.world))

    @property
    def hidden(self) -> set[int]:
        """Those of them of which nothing can be known."""
        return set(self.unseen) if self.is_whole else self.expected - set(self.read)


def alike_of(fields: Mapping[str, object]) -> Alike | None:
    """What a file says; None where it says nothing."""
    world, read, unseen = whole(fields, "world"), wholes(fields.get("read")), wholes(fields.get("unseen"))
    nodes = texts(fields, "nodes")
    return Alike(world, read, unseen, fields.get("is_whole") is True, nodes) if world and read else None


def smaller(case: Case, alike: Alike) -> Case:
    """The case of the ranks that were read, as a job of its own: their groups have no other members, and nobody is missing."""
    if not alike.is_whole:
        return replace(case, out_of_sight=tuple(sorted(alike.hidden.union(case.out_of_sight))))
    kept = alike.expected
    absent = Unavailable(
        f"{alike.world - len(kept)} of {alike.world} ranks", "not read: each stands as one of those does that were read"
    )
    return replace(
        case,
        job=replace(case.job, world_size=None),
        ranks={rank: evidence for rank, evidence in case.ranks.items() if rank in kept},
        groups=tuple(_group_of(g, kept) for g in case.groups if not g.ranks or kept.intersection(g.ranks)),
        calls=_calls_of(case.calls, kept),
        absent=(absent, *case.absent),
        out_of_sight=tuple(sorted(kept.intersection({*alike.unseen, *case.out_of_sight}))),
        chosen=tuple(sorted(kept)),
        stands_for=alike.world,
    )


def _group_of(group: ProcessGroup, kept: Collection[int]) -> ProcessGroup:
    ranks = tuple(r for r in group.ranks if r in kept)
    return replace(group, ranks=ranks, left_out=group.size - len(ranks))


def _calls_of(table: CollectiveTable, kept: Collection[int]) -> CollectiveTable:
    wanted = np.array(sorted(kept), dtype=np.int32)
    rows, said = np.isin(table["rank"], wanted), np.isin(table.progress["rank"], wanted)
    return replace(
        table,
        columns={name: column[rows] for name, column in table.columns.items()},
        progress={name: column[said] for name, column in table.progress.items()},
        groups=tuple(_group_of(g, kept) for g in table.groups),
        wrapped_ranks=table.wrapped_ranks & frozenset(kept),
        active_ranks=table.active_ranks & frozenset(kept),
    )
