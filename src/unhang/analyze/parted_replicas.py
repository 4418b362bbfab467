"""Values of the model that each rank prints of its own replica: equal at first, and then not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.model import LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_MOST_LINES, _MOST_CHARS, _LEAST, _NEAR = 4000, 300, 3, 1e-3
_VALUE = lazy_pattern(
    r"\b(?P<name>(?:w|weights?|params?|parameters?|model|state_?dict)[._ -](?:\w{1,20}[._ -])?(?:sum|norm|mean|hash|checksum|crc|md5|sha))\b"
    r"[=: ]{1,3}(?P<value>[-+]?\d+\.\d+(?:e[-+]?\d+)?|0x[0-9a-f]{6,64}|[0-9a-f]{8,64})\b",
    re.IGNORECASE,
)
_RANK = lazy_pattern(r"\brank[ _:=#-]?(\d{1,5})\b", re.IGNORECASE)
# Replicas may differ by design, or a rank holds a part of the model only.
_BY_DESIGN = lazy_pattern(
    r"local[ _-]?sgd|DiLoCo|FSDP|fully_shard|ZeRO|zero_?stage|pipeline|tensor[ _-]?parallel|federated|gossip",
    re.IGNORECASE,
)


class Parted(NamedTuple):
    """The value that parted. `lines`: of each rank where it was equal for the last time, and at the end."""

    name: str
    lines: Sequence[tuple[int, LogLine]]


def parted_replicas(s: Situation) -> Parted | None:
    """A value of the weights that all ranks print, equal in the first line of each, and different in each of the last lines."""
    told: dict[str, dict[int, list[tuple[str, LogLine]]]] = {}
    for line in s.case.log[:_MOST_LINES]:
        text = line.text[:_MOST_CHARS]
        if _BY_DESIGN.search(text):
            return None
        for found in _VALUE.finditer(text):
            own = _RANK.search(text) if line.rank is None else None
            rank = line.rank if line.rank is not None else int(own[1]) if own else None
            if rank is not None:
                told.setdefault(found["name"], {}).setdefault(rank, []).append((found["value"], line))
    return next((p for name, of_ranks in told.items() if (p := _parted(name, of_ranks)) is not None), None)


def _parted(name: str, of_ranks: dict[int, list[tuple[str, LogLine]]]) -> Parted | None:
    count = min((len(values) for values in of_ranks.values()), default=0)
    if len(of_ranks) < 2 or count < _LEAST or max(len(v) for v in of_ranks.values()) > count + 1:
        return None
    rounds = [[values[i][0] for values in of_ranks.values()] for i in range(count)]
    if len(set(rounds[0])) > 1 or not all(map(_differ, rounds[-_LEAST + 1 :])):
        return None
    last_equal = max(i for i, values in enumerate(rounds) if len(set(values)) == 1)
    return Parted(name, [(r, values[i][1]) for i in (last_equal, count - 1) for r, values in sorted(of_ranks.items())])


def _differ(values: Sequence[str]) -> bool:
    """Whether hashes differ, or numbers by more than rounding."""
    try:
        numbers = [float(v) for v in values]
    except ValueError:
        return len(set(values)) > 1
    return max(numbers) - min(numbers) > _NEAR * max(map(abs, numbers))
