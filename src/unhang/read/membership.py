"""Who belongs to which process group, from what every rank knows of the groups it joined.

Two groups can bear one name: torch counts the groups that a process creates, so the count differs where only members
create a group. Then one of them keeps the name, and the others get their ranks appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from unhang.model import ProcessGroup

DEFAULT_GROUP = "0"
Groups = Mapping[str, ProcessGroup]


class Membership:
    """Finds a rank's group by the name under which the rank mentions it."""

    def __init__(self, saved: Mapping[int, Iterable[ProcessGroup]], world: tuple[int, ...]) -> None:
        """`saved`: for each rank the groups that it noted itself. `world`: the ranks of a default group nobody noted."""
        self._saved = {rank: {g.name: g for g in groups} for rank, groups in saved.items()}
        self._world = ProcessGroup(DEFAULT_GROUP, "default_pg", world)
        self._keepers: dict[str, ProcessGroup] = {}
        self._variants: dict[str, ProcessGroup] = {}
        known = [group for groups in self._saved.values() for group in groups.values()]
        holders = Counter((group.name, group.ranks) for group in known)
        fullness = {(g.name, g.ranks): g for g in sorted(known, key=lambda g: (g.timeout_s is not None, bool(g.desc)))}
        for key, _ in sorted(holders.items(), key=lambda item: (-item[1], item[0][1])):
            self._keepers.setdefault(key[0], fullness[key])

    def of_rank(self, rank: int, configured: Groups) -> dict[str, ProcessGroup]:
        """All groups as this rank names them. `configured`: those that its dump describes; what it noted wins."""
        own = {n: self._registered(g) for n, g in {**configured, **self._saved.get(rank, {})}.items() if g.ranks}
        return {DEFAULT_GROUP: self._world, **self._keepers, **own}

    def all_groups(self) -> tuple[ProcessGroup, ...]:
        """Every group that any rank has described so far."""
        return (*self._keepers.values(), *self._variants.values())

    def world(self) -> tuple[int, ...]:
        """The ranks of the default group, where a rank has described it."""
        return self._keepers[DEFAULT_GROUP].ranks if DEFAULT_GROUP in self._keepers else ()

    def _registered(self, group: ProcessGroup) -> ProcessGroup:
        keeper = self._keepers.setdefault(group.name, group)
        if keeper.ranks == group.ranks:
            return keeper
        name = name_with_ranks(group.name, group.ranks)
        return self._variants.setdefault(name, replace(group, name=name))


def name_with_ranks(name: str, ranks: tuple[int, ...]) -> str:
    """The name of a group that shares its own with another one: `1@2-3`."""
    return f"{name}@{'-'.join(map(str, ranks[:4]))}{'-...' if len(ranks) > 4 else ''}"
