"""Where each call is drawn when every group of a rank has its own track, and the text of millions of slices, put together as bytes.

Perfetto drops a slice that overlaps another one of its track without lying within it. Calls in flight at once are therefore
dealt out to up to LANES tracks of the group, and begin no earlier than the call before them on their track ended.

Slices of one kind come together: each is a row of bytes with what the kind shares, encoded once, and its numbers, padded
with blanks.

Legend of shapes: N calls or slices, S segments (the calls of one rank in one channel; a channel is a group and a direction).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, cast

from unhang.analyze.calls.positions import bare_op
from unhang.model import CallState, CollectiveTable
from unhang.numeric import np, npt

LANES = 4
DIRECTIONS = ("", "send", "recv")
_BLOCK_ROWS = 1 << 15  # what is computed of them stays in the cache of a core
_LEAST_GUESS_NS = 1_000_000
_OPEN = (CallState.SCHEDULED, CallState.STARTED)

Ints: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True)
class Drawn:
    """Calls with their tracks, arrays `[N]`, in the order of the table. Times are wall-clock nanoseconds.

    `end` of an open call is its start. `is_guess`: when it completed is not recorded. `track`: channel * LANES + lane.
    """

    rows: Ints
    track: Ints
    start: Ints
    end: Ints
    is_open: Flags
    is_guess: Flags


def rank_blocks(table: CollectiveTable) -> Iterator[Ints]:
    """The rows that have a time, whole ranks at once, about `_BLOCK_ROWS` of them."""
    rank_N, timed_N = table["rank"], table["created_ns"] > 0
    first = 0
    while first < len(table):
        last = min(first + _BLOCK_ROWS, len(table)) - 1
        end = int(np.searchsorted(rank_N, rank_N[last], side="right"))
        yield first + np.flatnonzero(timed_N[first:end])
        first = end


def picked(column: npt.NDArray[Any], rows: Ints) -> npt.NDArray[Any]:
    """The values of some rows, which rise; of rows without a gap nothing is copied, and nobody may change them."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return column[rows[0] : rows[-1] + 1]
    return column[rows]


def channels(table: CollectiveTable) -> Ints:
    """`[N]` group * 3 + direction: sends and receives of one group are different streams."""
    names = [bare_op(op).lower() for op in table.ops] or [""]
    directions = np.array([1 if "send" in name else 2 if "recv" in name else 0 for name in names])
    return table["group"].astype(np.int64) * len(DIRECTIONS) + np.where(table["is_p2p"], directions[table["op"]], 0)


def longest_guess_ns(table: CollectiveTable) -> int:
    """The longest that a call without a time of completion is drawn: four usual gaps between calls of a rank."""
    created_N, rank_N = table["created_ns"], table["rank"]
    if not (~np.isin(table["state"], _OPEN) & (table["completed_ns"] <= 0)).any():
        return _LEAST_GUESS_NS  # nothing is to be guessed
    gaps = np.diff(created_N)[(np.diff(rank_N) == 0) & (created_N[1:] > 0) & (created_N[:-1] > 0)]
    gaps = gaps[gaps >= 0]
    return max(_LEAST_GUESS_NS, 4 * int(np.median(gaps))) if len(gaps) else _LEAST_GUESS_NS


def drawn(table: CollectiveTable, rows: Ints, channel_N: Ints, guess_ns: int) -> Drawn:
    """The rows of whole ranks on their tracks. `channel_N`: of these rows; `guess_ns`: see `longest_guess_ns`."""
    rank, created, started, completed = (
        picked(table[name], rows).astype(np.int64, copy=False)
        for name in ("rank", "created_ns", "started_ns", "completed_ns")
    )
    state = picked(table["state"], rows)
    is_open = (state == _OPEN[0]) | (state == _OPEN[1])
    is_guess = ~is_open & (completed <= 0)
    start = np.maximum(created, started)
    end = np.where(is_guess, np.minimum(_next_created(rank, created), start + guess_ns), completed)
    end = np.where(is_open, start, np.maximum(end, start))
    lane, start = _lanes(rank, channel_N, start, end)
    return Drawn(rows, channel_N * LANES + lane, start, np.maximum(start, end), is_open, is_guess)


def _next_created(rank_N: Ints, created_N: Ints) -> Ints:
    """When the same rank issued its next call; of the last one, no bound."""
    following = np.append(created_N[1:], np.iinfo(np.int64).max)[: len(rank_N)]
    is_last = np.append(rank_N[1:] != rank_N[:-1], True)[: len(rank_N)]
    return np.where(is_last, np.iinfo(np.int64).max, following)


def _small(values_N: Ints) -> npt.NDArray[Any]:
    """Numbers in the narrowest type that holds them: of those, sixteen bits and less are sorted in linear time."""
    return values_N.astype(np.min_scalar_type(int(values_N.max(initial=0))))


def _lanes(rank_N: Ints, channel_N: Ints, start_N: Ints, end_N: Ints) -> tuple[Ints, Ints]:
    """(lane, start) so that the calls of one lane follow or enclose each other. Ranks are sorted.

    An open call has the end of its start: what is issued later lies within it once it is drawn to the end of the trace.
    """
    if not len(rank_N):
        return rank_N, start_N
    order = np.argsort(_small(channel_N), kind="stable")
    order = order[np.argsort(_small(rank_N - rank_N[0])[order], kind="stable")]
    is_first = np.append(True, (np.diff(rank_N[order]) != 0) | (np.diff(channel_N[order]) != 0))
    segment_N = np.cumsum(is_first) - 1
    first_S = np.flatnonzero(is_first)
    number = np.concatenate((start_N[order], end_N[order]))
    least = int(number.min())
    number -= least
    room, times = int(number.max()) + 2, None
    if room * len(first_S) >= 1 << 62:  # hardly ever: years, or dumps with senseless times
        times, number = np.unique(number, return_inverse=True)
        room = len(times) + 1
    base_N = segment_N * room  # no segment's times reach into the next one's
    begins_N = number[: len(order)] + base_N
    until_N = np.maximum.accumulate(number[len(order) :] + base_N)
    place_N = np.arange(len(order))
    in_flight_N = np.zeros_like(place_N)
    late = np.flatnonzero(until_N[:-1] > begins_N[1:]) + 1  # the others begin after all before them
    in_flight_N[late] = np.maximum(late - np.searchsorted(until_N, begins_N[late], side="right"), 0)
    lanes_N = np.minimum(np.maximum.reduceat(in_flight_N, first_S) + 1, LANES)[segment_N]
    nth_N = place_N - first_S[segment_N]
    before_N = np.where(nth_N >= lanes_N, until_N[place_N - lanes_N], 0)
    lane, start = np.empty_like(place_N), np.empty_like(place_N)
    lane[order] = nth_N % lanes_N
    number = np.maximum(begins_N, before_N) - base_N
    start[order] = (number if times is None else times[number]) + least
    return lane, start


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
