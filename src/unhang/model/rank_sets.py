"""Sets of ranks in few characters: the one way in which every report and every finding names them."""

from __future__ import annotations

from collections.abc import Iterable


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def fold_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Ranks as ranges: "0-2, 5, 6". Beyond `most` ranges the rest is counted: "0, 2, 4 and 509 more"."""
    runs = _runs(ranks)
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:most])
    left = sum(b - a + 1 for a, b in runs[most:])
    return f"{shown} and {left} more" if left else shown


def count_ranks(ranks: Iterable[int], most: int = 3) -> str:
    """A name of bounded length: "ranks 0-2, 5", and where these are too many ranges "2047 ranks (3, 11, 19, ...)"."""
    known = sorted(set(ranks))
    if len(_runs(known)) <= most:
        return name_ranks(known)
    return f"{len(known)} ranks ({fold_ranks(known, most).split(' and ')[0]}, ...)"


def name_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """The same as a noun: "rank 5", "ranks 0-2, 5", "no rank"."""
    known = sorted(set(ranks))
    if not known:
        return "no rank"
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {fold_ranks(known, most)}"
