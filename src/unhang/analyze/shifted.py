"""Whether a call of another size is the neighbour of the one expected: then a call was left out, or one more was made."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum

from unhang.analyze.align import Signature, signature
from unhang.analyze.callpath import Path, user_path
from unhang.analyze.divergence import Divergence
from unhang.analyze.streams import Streams
from unhang.model import Case

_LEAST_STRETCH = 3
_MOST_AHEAD = 16

_MOST_STRETCH = 128

Tokens = Mapping[int, tuple[Signature, Path]]


class Shift(Enum):
    """How a rank's calls are shifted against its peers'; the value reads after the rank."""

    NONE = ""
    LEFT_OUT = "left out a call"
    ONE_MORE = "made one call more"
    EITHER = "left out a call or made one more"
    SWAPPED = "made two calls in the other order"


def shift_at(case: Case, d: Divergence) -> Shift:
    """The shift that explains a divergence in size.

    Calls that both sides issued ahead tell it by themselves: a shift, or two calls that are swapped. Else the past has to
    foretell the reference's call, and the odd one has to be the call that comes before or after it, unless the reference
    has made its next call already: a size that nothing foretold is just a wrong one.
    """
    streams = Streams(case, case.calls.groups.index(d.group), d.seq + _MOST_AHEAD)
    ref, odd = (tokens_of(case, streams.rows.get(ranks[0], {})) for ranks in (d.reference, d.odd))
    if _is_swapped(ref, odd, d.seq):
        return Shift.SWAPPED
    ahead = [i for i in range(_MOST_AHEAD) if d.seq + i + 1 in ref and d.seq + i + 1 in odd]
    if len(ahead) >= _LEAST_STRETCH and len({ref[d.seq + i] for i in ahead}) > 1:
        is_more = all(odd[d.seq + i + 1] == ref[d.seq + i] for i in ahead)
        is_left_out = all(odd[d.seq + i] == ref[d.seq + i + 1] for i in ahead)
    else:
        expected = predicted(ref, d.seq)
        is_regular = bool(expected) and expected[0] == ref.get(d.seq)
        is_more = is_regular and odd.get(d.seq) == ref.get(d.seq - 1)
        is_next = odd.get(d.seq) == ref.get(d.seq + 1) != ref.get(d.seq)
        is_left_out = (is_regular and expected[1:] == [odd.get(d.seq)]) or is_next
    if is_more and is_left_out:
        return Shift.EITHER
    return Shift.ONE_MORE if is_more else Shift.LEFT_OUT if is_left_out else Shift.NONE


def tokens_of(case: Case, rows: Mapping[int, int]) -> Tokens:
    """What a rank called at each position, and from where."""
    calls = {seq: case.calls.call(row) for seq, row in rows.items()}
    return {seq: (signature(call), user_path(call.frames)) for seq, call in calls.items()}


def _is_swapped(ref: Tokens, odd: Tokens, seq: int) -> bool:
    """Whether two calls are in the other order, and what follows is alike again: else the order tells nothing."""
    theirs, mine = ([calls.get(s) for s in range(seq, seq + 3)] for calls in (ref, odd))
    return None not in theirs and theirs[0] != theirs[1] and mine == [theirs[1], theirs[0], theirs[2]]


def predicted(stream: Tokens, seq: int) -> list[Hashable]:
    """What followed, twice, the longest earlier stretch that is like the one before `seq`, the latest of them.

    A short one counts if both reach back to where the rank came to the place of this call.
    """
    lengths = {at: _common(stream, at, seq) for at in stream if at < seq}
    since = _calls_here(stream, seq)
    known = [
        (n, at)
        for at, n in lengths.items()
        if n >= _LEAST_STRETCH or (n >= since == _calls_here(stream, at) and _is_one_place(stream, at, seq))
    ]
    at = max(known)[1] if known else seq
    return [stream[s] for s in (at, at + 1) if s in stream and at < seq]


def _common(stream: Tokens, left: int, right: int) -> int:
    """The length of the equal stretch before two positions."""
    n = 0
    while n < _MOST_STRETCH and stream.get(left - n - 1) == stream.get(right - n - 1) is not None:
        n += 1
    return n


def _calls_here(stream: Tokens, seq: int) -> int:
    """How many calls a rank made at the place of this call, one after the other, before it."""
    n = 0
    while n < _MOST_STRETCH and _is_one_place(stream, seq - n - 1, seq):
        n += 1
    return n


def _is_one_place(stream: Tokens, left: int, right: int) -> bool:
    """Whether two calls came from the same place."""
    return left in stream and right in stream and stream[left][1] == stream[right][1] != ()
