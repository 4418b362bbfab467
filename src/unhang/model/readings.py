"""What was read or measured on a machine, before or beside a job: a limit, a device, an interface, a version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing as it is on one machine. `kind` is `area.what` (`machine.limit`, `network.port`, `device.state`).

    `subject` is which one of its kind (`nofile`, `eth0`, `29500`, `GPU 3`); `fields` are its named values, with units in the
    names (`size_bytes`, `delay_ms`). `rank` and `host` say who read it; `rank` is None where it does not belong to one rank.
    """

    kind: str
    subject: str = ""
    fields: Mapping[str, Value] = field(default_factory=dict)
    rank: int | None = None
    host: str = ""

    def __getitem__(self, name: str) -> Value:
        return self.fields.get(name)

    def number(self, name: str) -> float | None:
        """A field as a number; None where it is absent or none."""
        value = self.fields.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        """A field as text; empty where it is absent."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    @property
    def where(self) -> str:
        """Who read it, for people."""
        parts = [self.host, f"rank {self.rank}" if self.rank is not None else ""]
        return ", ".join(p for p in parts if p) or "this machine"


def as_numbers(version: str | None) -> tuple[int, ...]:
    """`2.7.0+cu126` as (2, 7, 0), to compare; empty where it is none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(n) for n in match[1].split(".")) if match else ()
