"""Reads what is asked for: `NAME:rank=2,step=5`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from .catalogue import FAULTS
from .fault import Fault, Parameter, Value


class BadFault(ValueError):
    """A fault or a parameter that does not exist, or a value outside its limits."""


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _value(fault: Fault, parameter: Parameter, text: str) -> Value:
    if text in parameter.choices:
        return text
    near = _nearest(text, parameter.choices)
    bad = BadFault(f"{fault.name}: {parameter.name}={text}{near or f': must be {parameter.limits}'}")
    if parameter.least is None or parameter.most is None:
        if parameter.choices or not text:
            raise bad
        return text
    try:
        number = int(text) if parameter.is_whole else float(text)
    except ValueError:
        raise bad from None
    if not parameter.least <= number <= parameter.most:
        raise bad
    return number


def read_fault(text: str) -> tuple[Fault, dict[str, Value]]:
    """The fault and the values of all its parameters.

    Raises:
        BadFault: in one line, with the nearest name.
    """
    name, _, rest = text.partition(":")
    fault = FAULTS.get(name.strip().replace("-", "_"))
    if fault is None:
        raise BadFault(f"there is no fault {name.strip()!r}{_nearest(name.strip(), FAULTS)}")
    known = {p.name: p for p in fault.parameters}
    values: dict[str, Value] = {p.name: p.default for p in fault.parameters}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, given = (p.strip() for p in part.partition("="))
        if key not in known:
            told = _nearest(key, known) or f"; it has {', '.join(known) or 'no parameters'}"
            raise BadFault(f"{fault.name} has no parameter {key!r}{told}")
        if not equals:
            raise BadFault(f"{fault.name}: {key} needs a value: {key}=...")
        values[key] = _value(fault, known[key], given)
    return fault, values


def read_faults(texts: Sequence[str]) -> list[tuple[Fault, dict[str, Value]]]:
    """All that is asked for.

    Raises:
        BadFault: in one line, with the nearest name.
    """
    return [read_fault(text) for text in texts]
