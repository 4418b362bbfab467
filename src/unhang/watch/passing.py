"""Who of very many nodes speaks to the hub through which other one."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.watch.far import FarNode
from unhang.watch.joining import Address

MOST_DIRECT, GROUP = 256, 100


class Passing:
    """`via`: who speaks through which node, and where that one listens. Up to MOST_DIRECT nodes, each speaks for itself."""

    def __init__(self) -> None:
        self.via: dict[str, tuple[str, Address]] = {}
        self._sizes: dict[str, int] = {}  # of the groups, by the nodes that pass on
        self._filled = ""  # the group that is filled now

    def place(self, node: FarNode, nodes: Mapping[str, FarNode]) -> None:
        """Finds a place for a node that has spoken for itself."""
        if len(nodes) <= MOST_DIRECT or node.id in self.via or node.id in self._sizes:
            return
        if self._filled and self._sizes[self._filled] < GROUP:
            self._sizes[self._filled] += 1
            self.via[node.id] = self._filled, nodes[self._filled].address
        elif node.address.port:
            self._sizes[node.id], self._filled = 0, node.id

    def lose(self, node: str) -> None:
        """A node is not heard: who spoke through it is to find another place, and its own is free."""
        if self._sizes.pop(node, None) is not None:
            self._filled = "" if self._filled == node else self._filled
            for name in [name for name, (passing, _) in self.via.items() if passing == node]:
                del self.via[name]
        elif node in self.via:
            passing, _ = self.via.pop(node)
            self._sizes[passing] -= 1
