"""What `unhang check` looks at: one module per area.

An area has `LIMIT_S`, the longest that its local reading may take; `SCOPE`: who reads it, every "rank" or one rank per
"host"; `probe(context)`: what this process can read by itself; and, where the ranks must act together,
`probe_together(context)`, which all ranks call in the same order and which has limits of its own.
Both yield readings, and `Unavailable("area.kind" or "area", reason)` for what could not be read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Protocol, cast

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context

AREAS = ("machine", "network", "devices", "versions", "environment", "collectives", "links")


class Area(Protocol):
    """A module of this folder."""

    SCOPE: str
    LIMIT_S: float

    def probe(self, context: Context) -> Iterable[Reading | Unavailable]:
        """What this process can read by itself."""


def area(name: str) -> Area:
    """The module of an area."""
    return cast(Area, importlib.import_module(f"unhang.preflight.areas.{name}"))
