"""Tables of different ranks as one: what makes the reading of dumps a sum of independent parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.model.calls import CALL_COLUMNS, PROGRESS_COLUMNS, CollectiveTable

# Which small table each column indexes.
_INDEXED = {
    "group": "groups",
    "op": "ops",
    "in_sizes": "sizes",
    "out_sizes": "sizes",
    "dtype": "dtypes",
    "frames": "stacks",
    "thread": "threads",
}


def different(*columns: npt.ArrayLike) -> npt.NDArray[Any]:
    """The values in these columns, each once, sorted. `np.unique` alone would import `numpy.ma`, 10 ms of a verdict."""
    return np.unique(np.concatenate(columns), return_counts=True)[0]


def join(tables: Sequence[CollectiveTable]) -> CollectiveTable:
    """All rows of all tables, by rank and order of issue; equal groups, sizes, stacks and names get one number.

    Associative, and the order of the tables changes only the numbering. No rank may be in two tables.
    """
    if len(tables) == 1:
        return tables[0]
    numbering = {name: _Numbering(tables, name) for name in ("groups", "ops", "sizes", "dtypes", "stacks", "threads")}
    columns = {
        name: _joined([t[name] for t in tables], kind, numbering.get(_INDEXED.get(name, "")))
        for name, kind in CALL_COLUMNS.items()
    }
    columns = _in_order(columns)
    progress = {
        name: _joined([t.progress[name] for t in tables], kind, numbering["groups"] if name == "group" else None)
        for name, kind in PROGRESS_COLUMNS.items()
    }
    return CollectiveTable(
        columns=columns,
        **{name: n.values for name, n in numbering.items()},
        wrapped_ranks=frozenset().union(*(t.wrapped_ranks for t in tables)),
        active_ranks=frozenset().union(*(t.active_ranks for t in tables)),
        progress=progress,
    )


def _in_order(columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """By rank and order of issue. The parts of a large job come in this order, and are not copied once more."""
    rank, record = columns["rank"], columns["record_id"]
    steps = np.diff(rank)
    if not ((steps < 0) | ((steps == 0) & (record[1:] < record[:-1]))).any():
        return columns
    order = np.lexsort((record, rank))
    return {name: column[order] for name, column in columns.items()}


class _Numbering:
    """One numbering of the values of a small table, and for each table what its numbers become."""

    def __init__(self, tables: Sequence[CollectiveTable], name: str) -> None:
        numbers: dict[Any, int] = {}
        self.new: list[npt.NDArray[np.int32]] = []
        for table in tables:
            mine = [numbers.setdefault(value, len(numbers)) for value in getattr(table, name)]
            self.new.append(np.array([*mine, -1], dtype=np.int32))
        self.values = tuple(numbers)


def _joined(parts: Sequence[npt.NDArray[Any]], kind: str, numbering: _Numbering | None) -> npt.NDArray[Any]:
    if numbering is not None:  # -1 means "none" and stays so: it takes the last place
        parts = [new[part] for new, part in zip(numbering.new, parts, strict=True)]
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, dtype=kind)
