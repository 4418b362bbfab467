"""From the number of elements of a call to what it may be: a parameter, a bucket of DDP, its map of used parameters, a random generator's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from unhang.analyze.situation import Situation
from unhang.model import CallState
from unhang.numeric import np

_MOST_CALLS, _MOST_NAMES, _LEAST_WIDTH = 64, 3, 64
CPU_GENERATOR = 5056  # bytes of torch.get_rng_state()


def waiting_counts(s: Situation) -> tuple[int, ...]:
    """The numbers of elements of the calls that did not complete, each once."""
    logged = [n for wait in s.watchdogs.timed_out for n in (wait.numel_in, wait.numel_out) if n]
    table = s.case.calls
    rows = np.nonzero(table["state"] != CallState.COMPLETED)[0][:_MOST_CALLS] if len(table) else ()
    calls = [prod(sizes) for row in rows for sizes in table.call(int(row)).in_sizes]
    return tuple(dict.fromkeys(n for n in (*logged, *calls) if n > 1))


def named(count: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a call of so many elements may be, by the model's shapes; "" where nothing fits. More than one thing may have the size."""
    found = list(_alike(count, shapes))
    return f"{count:,} elements: {'; or '.join(found)}" if found else ""


def _alike(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    equal = [name for name, sizes in shapes.items() if prod(sizes) == count]
    if equal:
        sizes = " x ".join(f"{n:,}" for n in shapes[equal[0]])
        more = f" and {len(equal) - _MOST_NAMES} more" if len(equal) > _MOST_NAMES else ""
        yield f"{', '.join(f'`{name}`' for name in equal[:_MOST_NAMES])}{more} ({sizes})"
    if count == len(shapes):
        yield f"one number for each of the {count} tensors, as in DDP's map of used parameters"
    if count == CPU_GENERATOR:
        yield "the state of torch's random generator on the processor"
    if not equal:
        yield from _bucket(count, shapes)
        yield from _rows(count, shapes)


def _bucket(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The one run of neighbouring tensors with that sum: DDP fills its buckets from the last parameter to the first."""
    names = list(shapes)[::-1]
    ends = np.cumsum([0, *(prod(shapes[name]) for name in names)])
    starts = np.searchsorted(ends, ends + count)
    runs = [(i, int(j)) for i, j in enumerate(starts) if j < len(ends) and ends[j] == ends[i] + count and j > i + 1]
    if len(runs) == 1:
        first, last = names[runs[0][0]], names[runs[0][1] - 1]
        yield f"a bucket of DDP, the gradients from `{first}` to `{last}` ({runs[0][1] - runs[0][0]} tensors)"


def _rows(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Rows as wide as a layer, where one width alone fits: features that are gathered."""
    widths = {n for sizes in shapes.values() for n in sizes if n >= _LEAST_WIDTH}
    fitting = sorted((n for n in widths if count % n == 0 and count > n), reverse=True)
    widest = [n for n in fitting if not any(other % n == 0 for other in fitting if other != n)]
    if len(widest) == 1:
        of = next(name for name, sizes in shapes.items() if widest[0] in sizes)
        yield f"{count // widest[0]:,} rows of {widest[0]:,}, the width of `{of}`: outputs of that layer"
