"""Who waits for whom, across all groups, threads, stores and point-to-point pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """`waiter` cannot go on before every rank in `targets` has acted.

    `kind`: collective, p2p, new_group, store, rendezvous. `what` reads as an object: "all_reduce #15 of default_pg".
    `mismatch`: the targets did act, but with another call, so that the wait can never end.
    """

    waiter: int
    targets: tuple[int, ...]
    kind: str
    what: str
    group: str = ""
    seq: int | None = None
    since_ns: int | None = None
    mismatch: bool = False


@dataclass(frozen=True)
class WaitsFor:
    """The graph. `roots`: ranks that others wait for, directly or not, and that wait for nobody themselves.

    `cycles`: sets of ranks that wait for each other. `victims`: for each root, the ranks that it blocks.
    """

    edges: tuple[WaitEdge, ...] = ()
    roots: tuple[int, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        """Every rank that waits."""
        return tuple(sorted({e.waiter for e in self.edges}))

    def edges_of(self, rank: int) -> tuple[WaitEdge, ...]:
        """The waits of one rank."""
        return self._by_waiter.get(rank, ())

    @cached_property
    def _by_waiter(self) -> dict[int, tuple[WaitEdge, ...]]:
        found: dict[int, list[WaitEdge]] = {}
        for edge in self.edges:
            found.setdefault(edge.waiter, []).append(edge)
        return {rank: tuple(edges) for rank, edges in found.items()}
