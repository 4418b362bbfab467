"""numpy, imported at its first use, as it may not be there; and arrays of bytes and words, cut out and compared quickly with it.

Legend of shapes: n places, W bytes of an entry, padded to whole words.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from unhang.errors import NoNumpy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "PAD",
    "Bools",
    "Bytes",
    "Ints",
    "digest",
    "distinct",
    "factors",
    "has_numpy",
    "np",
    "npt",
    "numbers_at",
    "paired",
    "places",
    "random_words",
    "strided",
    "wide",
    "without_threads",
    "words_at",
]

_THREADS = "OPENBLAS_NUM_THREADS"
_of_own_process = False


@cache
def has_numpy() -> bool:
    """Whether it is installed; nothing is imported for that."""
    return importlib.util.find_spec("numpy") is not None


def without_threads() -> None:
    """In a process of ours numpy comes without its threads: they cost more to start than the rest, and nothing multiplies matrices."""
    global _of_own_process
    _of_own_process = True


def _imported(name: str) -> Any:
    """Raises NoNumpy: it is not installed."""
    if not has_numpy():
        raise NoNumpy("numpy is not installed here")
    if not _of_own_process or _THREADS in os.environ:
        return importlib.import_module(name)
    os.environ[_THREADS] = "1"
    try:
        return importlib.import_module(name)
    finally:
        del os.environ[_THREADS]


if not TYPE_CHECKING:

    class _AtFirstUse:
        """Stands for a module until something of it is asked for, and keeps what was."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(_imported(self._name), attribute)
            setattr(self, attribute, found)
            return found

    np, npt = _AtFirstUse("numpy"), _AtFirstUse("numpy.typing")

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
PAD = 16  # bytes behind a buffer, so that numbers at its end can be read as words
_FEW_WORDS = 3
_SLOT_BITS = 16
_SLOTS = 1 << _SLOT_BITS
_SPREADS = 64


def random_words(count: int) -> npt.NDArray[np.uint64]:
    """Numbers that nobody foresees. Importing numpy's generators would take longer than reading a hundred dumps."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


@cache
def factors() -> npt.NDArray[np.uint64]:
    """Odd numbers of its own for each process, so that nobody can write two spans that look equal."""
    return random_words(1 << 12) | np.uint64(1)


def places(is_it: Bools) -> Ints:
    """Where an array is true, when that is seldom: whole words are looked at first."""
    size = len(is_it) // 8 * 8
    words = is_it[:size].view(np.uint64)
    found = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[found].view(bool))
    return np.concatenate([found[inside // 8] * 8 + inside % 8, size + np.flatnonzero(is_it[size:])])


def wide(data: Bytes, at: Ints) -> Ints:
    """Little-endian numbers of four bytes."""
    return numbers_at(data, at, "<u4", 4)


def numbers_at(data: Bytes, at: Ints, form: str, size: int) -> Ints:
    """Numbers of this form and size, as far as the data goes."""
    at = np.minimum(at, len(data) - size)
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), form, data, strides=(1,))
    return everywhere[at].astype(np.int64)


def strided(raw: npt.NDArray[np.uint8], offset: int, kind: str) -> npt.NDArray[Any]:
    """A value that stands in each of the rows."""
    return np.ndarray((len(raw),), kind, raw, offset, (raw.shape[1],))


def words_at(buffer: Bytes, start_n: Ints, length: int) -> npt.NDArray[np.uint64]:
    """The entries that begin at these places as rows of words, of shape [n, W / 8]; bytes beyond `length` are others'."""
    width = -(-length // 8) * 8
    rows: npt.NDArray[Any] = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return rows[start_n].view(np.uint64).reshape(len(start_n), width // 8)


def digest(words: npt.NDArray[np.uint64], mask: Bytes) -> npt.NDArray[np.uint64]:
    """A number for the bytes of entries under a mask: equal ones have equal numbers, others have not (to 2**-33)."""
    masks = mask.view(np.uint64)
    used = np.flatnonzero(masks)
    if not len(used):
        return np.zeros(len(words), np.uint64)
    first, last = int(used[0]), int(used[-1]) + 1
    if len(used) > _FEW_WORDS:
        part = words[:, first:last] & masks[first:last]
        part ^= part >> np.uint64(32)
        return np.asarray(part @ factors()[first:last])
    made = np.zeros(len(words), np.uint64)
    for i in used.tolist():  # word by word is faster
        word = words[:, i] & masks[i]
        made += (word ^ word >> np.uint64(32)) * factors()[i]
    return made


def distinct(values: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """The first place of each value, and for each place the number of its value. Hashing beats sorting: few differ."""
    codes = np.empty(len(values), np.int64)
    firsts: list[Ints] = []
    left, count = np.arange(len(values)), 0
    table = np.empty(_SLOTS, np.int64)
    while len(left):
        some = values[left]
        slot = (some * factors()[-1 - len(firsts) % _SPREADS]) >> np.uint64(64 - _SLOT_BITS)
        table[slot[::-1]] = left[::-1]  # the last of equal places wins
        first = table[slot]
        same = values[first] == some
        is_first = first == left
        made = left[is_first]
        table[slot[is_first]] = np.arange(count, count + len(made))
        codes[left[same]] = table[slot[same]]
        firsts.append(made)
        count += len(made)
        left = left[~same]
    return np.concatenate(firsts) if firsts else left, codes


def paired(a_N: Ints, b_N: Ints) -> tuple[Ints, Sequence[tuple[int, int]]]:
    """Numbers of the pairs, and the pairs."""
    firsts, codes = distinct((a_N << 32 | b_N).astype(np.uint64))
    return codes, [(int(a_N[i]), int(b_N[i])) for i in firsts.tolist()]
