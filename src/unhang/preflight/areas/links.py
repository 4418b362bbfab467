"""The area `links`: which ranks, or links between two of them, are bad."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.preflight.devices_here import backend_and_device
from unhang.preflight.links.searching import search_links

SCOPE = "rank"
LIMIT_S = 1.0


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Nothing can be said of links by one process."""
    if context.party.is_alone:
        yield Unavailable("links", "one process; --ranks starts some on this machine, torchrun or srun on all nodes")


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """The search."""
    if not context.party.is_alone:
        yield from search_links(context, *backend_and_device(context, "links"))
