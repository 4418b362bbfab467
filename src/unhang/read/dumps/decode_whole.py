"""Whole dumps of a batch: most are twins of one before, the others are decoded together.

Legend of shapes: F dumps of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unhang.read.dumps.columns import Ints
from unhang.read.dumps.decode_batch import Dumps, columns_of, decoded
from unhang.read.dumps.decode_learning import Learning
from unhang.read.dumps.decode_rows import Columns, Names
from unhang.read.dumps.decode_twins import Twin
from unhang.read.dumps.decode_window import Loaded, gathered

_MOST_TWINS, _MOST_BYTES = 8, 4 << 20
_SELDOM = 8  # of so many shards one is tried where the last try was in vain


@dataclass
class Kept:
    """What a process keeps from shard to shard: a job's dumps come in many. `twins`: the last used ones first.

    `is_vain`: the last dumps that were decoded before others had no twins yet. `shards`: how many there were.
    """

    twins: list[Twin] = field(default_factory=list)
    is_vain: bool = False
    shards: int = 0


KEPT = Kept()


@dataclass
class WholeDumps:
    """Takes dumps one after another; `take` gives the columns of those since the last time.

    Once two seem to be twins, they are decoded before the others, so that those that follow can take over from them;
    seldom where none has done so. `is_one_of_many`: twins are looked for.
    """

    names: Names
    frames: bool
    is_one_of_many: bool
    dumps: list[Loaded] = field(default_factory=list)
    _pieces: list[tuple[int, Columns]] = field(default_factory=list)  # number of the first dump, columns
    _left: list[int] = field(default_factory=list)
    _quirky: list[int] = field(default_factory=list)
    _may_try: bool = field(init=False)

    def __post_init__(self) -> None:
        KEPT.shards += self.is_one_of_many
        self._may_try = self.is_one_of_many and (not KEPT.is_vain or KEPT.shards % _SELDOM == 0)

    def add(self, dump: Loaded) -> None:
        """Takes a dump."""
        self.dumps.append(dump)
        columns = self._taken_over(dump)
        if columns is not None:
            self._may_try, KEPT.is_vain = True, False
            self._pieces.append((len(self.dumps) - 1, {**columns, "dump": np.zeros(len(columns["seq"]), np.int64)}))
            return
        is_like_another = any(_size(dump) == _size(self.dumps[i]) for i in self._left)
        self._left.append(len(self.dumps) - 1)
        if self._may_try and is_like_another:
            self._may_try, KEPT.is_vain = False, True
            self._decode()

    def take(self) -> tuple[Dumps, Columns]:
        """All dumps taken, those that need the slow way as quirky ones, and the columns of the others."""
        self._decode()
        found = Dumps([dump.head for dump in self.dumps], np.zeros(len(self.dumps), bool))
        found.quirky_F[self._quirky] = True
        pieces = sorted(self._pieces, key=lambda piece: piece[0])
        self.dumps, self._pieces, self._quirky = [], [], []
        return found, _joined(pieces)

    def _taken_over(self, dump: Loaded) -> Columns | None:
        for i, twin in enumerate(KEPT.twins if self.is_one_of_many else ()):
            columns = twin.columns_of(dump, self.names) if twin.frames == self.frames else None
            if columns is not None:
                KEPT.twins.insert(0, KEPT.twins.pop(i))
                return columns
        return None

    def _decode(self) -> None:
        """Decodes what is left; from its last dump others may take over."""
        if not self._left:
            return
        numbers, self._left = np.array(self._left), []
        some = [self.dumps[i] for i in numbers.tolist()]
        try:
            self._decode_these(some, numbers)
        except MemoryError:
            self._quirky += numbers.tolist()

    def _decode_these(self, some: Sequence[Loaded], numbers: Ints) -> None:
        rows = decoded(gathered(some, self.names.texts), self.names)
        columns = columns_of(rows, self.frames, is_whole=True)
        quirky_F = rows.batch.quirky_F
        good = np.flatnonzero(~quirky_F)
        if self.is_one_of_many and len(good) and len(some[good[-1]].data) <= _MOST_BYTES:
            twin = Learning(some[good[-1]], rows, int(good[-1]), self.frames).twin()
            KEPT.twins = [*([twin] if twin else []), *KEPT.twins][:_MOST_TWINS]
        self._quirky += numbers[quirky_F].tolist()
        self._pieces += _pieces(numbers, columns)


def _size(dump: Loaded) -> tuple[int, int]:
    """Equal for twins whose names are of equal length: what the head defines, and how long the entries are."""
    return dump.head.known, len(dump.data) - dump.head.start


def _pieces(number_F: Ints, columns: Columns) -> list[tuple[int, Columns]]:
    """The columns of dumps that follow each other, with the number of the first one."""
    if not columns:
        return []
    firsts = np.flatnonzero(np.diff(number_F, prepend=-2) != 1)
    cuts = [*np.searchsorted(columns["dump"], firsts).tolist(), len(columns["dump"])]
    pieces = []
    for first, begin, end in zip(firsts.tolist(), cuts, cuts[1:], strict=False):
        if end > begin:
            piece = {name: column[begin:end] for name, column in columns.items()}
            piece["dump"] = piece["dump"] - first
            pieces.append((int(number_F[first]), piece))
    return pieces


def _joined(pieces: Sequence[tuple[int, Columns]]) -> Columns:
    """The columns of all pieces, with the numbers of their dumps; nobody else has the states, which will be changed."""
    if len(pieces) == 1:
        ((first, columns),) = pieces
        return {**columns, "dump": columns["dump"] + first, "state": columns["state"].copy()}
    names = pieces[0][1] if pieces else ()
    joined = {name: np.concatenate([columns[name] for _, columns in pieces]) for name in names if name != "dump"}
    if pieces:
        joined["dump"] = np.concatenate([columns["dump"] + first for first, columns in pieces])
    return joined
