"""What the catalogue says of a message, as text and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from unhang.model import CAUSES
from unhang.read.logs.catalogue import PROGRAM, Emitter, Row
from unhang.show.paper import printable

_WIDTH = 110
_ROLES = {
    "root": "it says itself what went wrong",
    "witness": "something went wrong; why, another line says",
    "echo": "only that a peer, the network or the store went away: look for what came before",
    "notice": "nothing went wrong by it",
}


@dataclass(frozen=True)
class Message:
    """A line in the catalogue: its row, None where no row knows it, and who prints such lines."""

    row: Row | None
    emitter: Emitter

    @property
    def is_known(self) -> bool:
        """Whether the catalogue tells more of it than any line has."""
        return self.row is not None or self.emitter.name not in (PROGRAM.name, "logger")


def message_text(message: Message) -> list[str]:
    """Its lines, each with the name of what it tells."""
    row = message.row
    if row is None:
        return [
            f"  emitter     {message.emitter.name} (layer: {message.emitter.layer}); the message itself is not in the catalogue"
        ]
    since = f", versions {row.versions}" if row.versions else ""
    facts = [
        ("emitter", f"{row.emitter} (layer: {row.layer}){since}"),
        ("role", f"{row.role}: {_ROLES[row.role]}"),
        ("it means", row.meaning),
        ("cause", f"{row.cause}: {CAUSES[row.cause]}" if row.cause else ""),
        ("do first", row.fix),
    ]
    return [line for name, fact in facts if fact for line in _wrapped(name, printable(fact))]


def _wrapped(name: str, fact: str) -> list[str]:
    return textwrap.wrap(fact, _WIDTH, initial_indent=f"  {name:12}", subsequent_indent=" " * 14)


def message_json(message: Message) -> dict[str, Any]:
    """The same for programs."""
    row = message.row
    if row is None:
        return {"emitter": message.emitter.name, "layer": message.emitter.layer}
    return {
        "emitter": row.emitter,
        "layer": row.layer,
        "role": row.role,
        "cause": row.cause or None,
        "versions": row.versions or None,
        "template": row.templates[0],
        "meaning": row.meaning or None,
        "fix": row.fix or None,
    }
