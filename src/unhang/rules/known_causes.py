"""What the text of an exception establishes by itself, by the catalogue of messages."""

from __future__ import annotations

from unhang.read.logs.catalogue import Row, best_cause, weighed

USER = "user-exception"
_OF_ITS_OWN = ("user",)  # the layer of what a program, its loader or Python itself says


def row_of_exception(text: str) -> Row | None:
    """The message that an exception is, given as `Type: message`, if that names a cause which is not just that it was raised."""
    row = best_cause(text)
    return row if row is not None and row.cause != USER else None


def is_not_of_the_program(text: str) -> bool:
    """Whether an exception says by itself what went wrong, and that is not the program, or only that a library below it failed."""
    return row_of_exception(text) is not None or _is_witness(text.partition("\n")[0])


def _is_witness(line: str) -> bool:
    row = next(iter(weighed().rows_of(line)), None)
    return row is not None and row.role == "witness" and row.layer not in _OF_ITS_OWN
