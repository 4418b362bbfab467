"""Who measures whom, and when: pairs that do not share a host at the same time."""

from __future__ import annotations

_ALL_PAIRS = 32


def peers_of(index: int, size: int, most: int = _ALL_PAIRS) -> tuple[int | None, ...]:
    """The peer of one of `size` hosts in each round; None: it pauses.

    Up to `most` hosts every pair meets once, as in a round-robin tournament. More of them measure along a ring and at
    strides of 2, 4, 8 ... around it: a host is then in 2 log2(size) ways, and each round uses each host once either way.
    """
    if size < 2:
        return ()
    if size <= most:
        return tuple(_opponent(index, turn, size + size % 2, size) for turn in range(size - 1 + size % 2))
    return tuple((index + (1 << k)) % size for k in range((size - 1).bit_length()))


def _opponent(index: int, turn: int, even: int, size: int) -> int | None:
    """The circle method: the last one stays, the others turn; whoever meets the one too many pauses."""
    last = even - 1
    if index == last:
        peer = turn
    elif index == turn:
        peer = last
    else:
        peer = (2 * turn - index) % last
    return peer if peer < size else None
