"""The text of millions of slices, put together as bytes: no slice is an object.

Slices of one kind come together: each is a row of bytes with what the kind shares, encoded once, and its numbers, padded
with blanks.

Legend of shapes: N slices.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from unhang.show.tracks import Flags, Ints

_FASTEST, _GZIP = 1, 31  # what is packed is much alike


class Packer(Protocol):
    """A gzip member in the making."""

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """Takes text; returns what is packed by now."""

    def flush(self) -> bytes:
        """The rest."""


def gzip_packer() -> Packer:
    """A new gzip member, packed by whichever library is there."""
    try:
        isal_zlib = import_module("isal.isal_zlib")
    except ImportError:
        return zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP)
    return cast(Packer, isal_zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP))


_GROUP = 10_000  # four digits
_ROWS_AT_ONCE = 4096  # rows that stay in the cache of a core
_HEAD_STEP = 16  # heads are padded to a multiple of so many bytes


@cache
def _four_digits() -> npt.NDArray[np.uint32]:
    """Numbers below 10,000 as four bytes: with zeros before them; with blanks; and with blanks where 0 is all blank."""
    values_V = np.arange(_GROUP)
    zeros = np.stack([values_V // 10**place % 10 for place in (3, 2, 1, 0)], axis=1).astype(np.uint8) + ord("0")
    blanks = np.where(values_V[:, None] < (1000, 100, 10, 1), ord(" "), zeros).astype(np.uint8)
    units = blanks.copy()
    units[0, 3] = ord("0")
    return np.concatenate((zeros, units, blanks)).view(np.uint32).ravel()


def _groups(values_N: Ints) -> list[npt.NDArray[Any]]:
    """Numbers, not negative, four digits at a time, highest first: places in `_four_digits`, `[1]` where all are equal."""
    least, most = int(values_N.min(initial=0)), int(values_N.max(initial=0))
    found: list[npt.NDArray[Any]] = []
    rest_N: npt.NDArray[Any] = values_N
    while most >= _GROUP:
        if most < 1 << 31:
            rest_N = rest_N.astype(np.int32, copy=False)
        higher_N = rest_N // _GROUP
        group_N = rest_N - higher_N * _GROUP
        if least < _GROUP:
            group_N += (higher_N == 0) * group_N.dtype.type((2 if found else 1) * _GROUP)
        found.append(group_N)
        rest_N, least, most = higher_N, least // _GROUP, most // _GROUP
    rest_N = rest_N[:1] if least == most else rest_N
    return [rest_N + (2 if found else 1) * _GROUP, *found[::-1]]


def digits(
    heads: Sequence[bytes], kind_N: npt.NDArray[Any], fields: Sequence[tuple[bytes, Ints]], tail: bytes
) -> Iterator[npt.NDArray[np.uint8]]:
    """Text, `[rows, width]`, some rows at a time: the head of each row's kind; of each field its name and number; `tail`.

    Heads are padded to one width, numbers with blanks before them; no number is negative.
    """
    row, spelled = b"", []
    for name, values_N in fields:
        row += name
        for group_N in _groups(values_N):
            if len(group_N) == 1:
                row += _four_digits()[group_N].tobytes()
            else:
                spelled.append((len(row), group_N))
                row += bytes(4)
    row += tail
    head_width = max(map(len, heads))
    whole_K = np.array([head.ljust(head_width) + row for head in heads], f"V{head_width + len(row)}")
    for first in range(0, len(kind_N), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        matrix = whole_K[kind_N[rows]].view(np.uint8).reshape(-1, whole_K.itemsize)
        for at, group_N in spelled:
            text_N: npt.NDArray[Any] = np.ndarray(
                len(matrix), np.uint32, matrix.data, head_width + at, (matrix.shape[1],)
            )
            text_N[:] = _four_digits()[group_N[rows]]
        yield matrix


@dataclass(frozen=True)
class Slices:
    """Slices before they become text, arrays `[N]`; times are nanoseconds after zero. `heads`: texts by kind."""

    rank: Ints
    track: Ints
    start: Ints
    end: Ints
    queued: Ints
    seq: Ints
    kind: Ints
    heads: Sequence[bytes]

    def only(self, which_N: Flags | Ints) -> Slices:
        """Some of them."""
        columns = (self.rank, self.track, self.start, self.end, self.queued, self.seq, self.kind)
        rank, track, start, end, queued, seq, kind = (column[which_N] for column in columns)
        return Slices(rank, track, start, end, queued, seq, kind, self.heads)

    def texts(self, which_N: Ints) -> Iterator[memoryview]:
        """The events of these numbers, those of one kind together."""
        width_K = np.array([-(-len(head) // _HEAD_STEP) for head in self.heads])
        order_K = np.argsort(width_K, kind="stable")
        place_K = np.empty(len(order_K), np.min_scalar_type(len(order_K)))  # small ones are sorted fast
        place_K[order_K] = np.arange(len(order_K))
        place_N = place_K[self.kind[which_N]]
        order_N = np.argsort(place_N, kind="stable")
        count_K = np.cumsum(np.bincount(place_N, minlength=len(order_K)))
        cuts_K = [0, *(np.flatnonzero(np.diff(width_K[order_K])) + 1).tolist(), len(order_K)]
        for first, last in pairwise(cuts_K):
            begin, end = int(count_K[first - 1]) if first else 0, int(count_K[last - 1])
            if end > begin:
                heads = [self.heads[k] for k in order_K[first:last].tolist()]
                some = order_N[begin:end]
                yield from self.only(which_N[some])._texts(heads, place_N[some] - first)

    def _texts(self, heads: Sequence[bytes], kind_N: npt.NDArray[Any]) -> Iterator[memoryview]:
        start = self.start // 1000
        fields = (
            (b"", self.seq),
            (b',"queued_us":', self.queued // 1000),
            (b'},"pid":', self.rank),
            (b',"tid":', self.track + 1),
            (b',"ts":', start),
            (b',"dur":', self.end // 1000 - start),
        )
        for matrix in digits(heads, kind_N, fields, b"}"):
            yield matrix.reshape(-1).data
