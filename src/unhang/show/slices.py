"""The text of a million slices, copied together as bytes: no slice is an object.

Slices of one kind come together: each is what the kind shares, encoded once, and a row of a byte matrix that holds the
numbers, padded with blanks.

Legend of shapes: N slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.show.tracks import Flags, Ints

_TEN_THOUSAND, _ROWS_AT_ONCE = 10_000, 4096  # rows that stay in the cache of a core


@cache
def _four_digits() -> npt.NDArray[Any]:
    """Numbers below 10,000 as four bytes: with zeros before them; with blanks; and with blanks where 0 is all blank."""
    values_V = np.arange(_TEN_THOUSAND)
    zeros = np.stack([values_V // 10**place % 10 for place in (3, 2, 1, 0)], axis=1).astype(np.uint8) + ord("0")
    blanks = np.where(values_V[:, None] < (1000, 100, 10, 1), ord(" "), zeros).astype(np.uint8)
    units = blanks.copy()
    units[0, 3] = ord("0")
    return np.concatenate((zeros, units, blanks)).view(np.uint32).ravel()


def digits(fields: Sequence[tuple[bytes, Ints]], tail: bytes) -> npt.NDArray[np.uint8]:
    """`[N, width]` text: of each field its name and its numbers, which are not negative, with blanks before; then `tail`."""
    count, four = len(fields[0][1]), _four_digits()
    widths = [-(-len(str(int(values_N.max(initial=0)))) // 4) * 4 for _, values_N in fields]
    row = b"".join(name + bytes(width) for (name, _), width in zip(fields, widths, strict=True)) + tail
    matrix = np.empty((count, len(row)), np.uint8)
    for first in range(0, count, _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        part, end = matrix[rows], 0
        part[:] = np.frombuffer(row, np.uint8)
        for (name, values_N), width in zip(fields, widths, strict=True):
            end += len(name) + width
            rest_N = values_N[rows]
            for at in range(end - 4, end - 4 - width, -4):
                higher_N = rest_N // _TEN_THOUSAND
                form_N = rest_N + (higher_N == 0) * (1 if at == end - 4 else 2) * _TEN_THOUSAND
                form_N -= higher_N * _TEN_THOUSAND
                part[:, at : at + 4].view(np.uint32)[:, 0] = four[form_N]
                rest_N = higher_N
    return matrix


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

    def only(self, mask_N: Flags) -> Slices:
        """Some of them."""
        columns = (self.rank, self.track, self.start, self.end, self.queued, self.seq, self.kind)
        rank, track, start, end, queued, seq, kind = (column[mask_N] for column in columns)
        return Slices(rank, track, start, end, queued, seq, kind, self.heads)

    def texts(self) -> Iterator[memoryview]:
        """The events, those of one kind together."""
        kind_N = self.kind.astype(
            np.min_scalar_type(len(self.heads))
        )  # the smaller the number, the sooner it is sorted
        order = np.argsort(kind_N, kind="stable")
        rank, track, start, end, queued, seq = (
            column[order] for column in (self.rank, self.track, self.start, self.end, self.queued, self.seq)
        )
        start //= 1000
        numbers = digits(
            (
                (b"", seq),
                (b',"queued_us":', queued // 1000),
                (b'},"pid":', rank),
                (b',"tid":', track + 1),
                (b',"ts":', start),
                (b',"dur":', end // 1000 - start),
            ),
            b"}",
        )
        first = 0
        for kind, count in enumerate(np.bincount(kind_N).tolist()):
            if count:
                head = np.frombuffer(self.heads[kind], np.uint8)
                made = np.empty((count, len(head) + numbers.shape[1]), np.uint8)
                made[:, : len(head)] = head
                made[:, len(head) :] = numbers[first : first + count]
                first += count
                yield made.reshape(-1).data
