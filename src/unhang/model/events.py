"""One thing that a log says, in words of ours instead of the program's that printed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unhang.model.evidence import Source

MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class LogEvent:
    """What one line of a log says. `kind` is `family.what`; `fields` are the named parts of the line, as printed.

    `rank` is global, None where neither the line nor its file tells it. `order` counts the lines of all logs in the order
    in which they are judged: by time where the lines have times, else as they were given. `says`: what such a line proves of
    the job: "hang" (a limit of a wait was hit), "crash" (a process failed), or nothing.
    """

    kind: str
    text: str
    source: Source
    order: int = 0
    rank: int | None = None
    host: str = ""
    time_ns: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    says: str = ""

    @property
    def is_progress(self) -> bool:
        """Whether it shows that the training moves."""
        return self.kind in ("progress.step", "progress.bar", "learn.loss_finite")

    def number(self, name: str) -> int | None:
        """A field as a whole number; None where it is absent or no number of a sane length."""
        value = self.fields.get(name, "").strip()
        return int(value) if value.lstrip("-").isdecimal() and len(value) <= MAX_DIGITS else None

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")
