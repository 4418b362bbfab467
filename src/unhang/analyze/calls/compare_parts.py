"""What the same ranks of two runs give to a comparison of the runs, whether they are all ranks or a few.

Legend of shapes: N rows of a table, R its ranks, G its groups, O its ops, K kinds of calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from unhang.analyze.calls.positions import bare_op, run_starts
from unhang.analyze.calls.schedule import FirstDifference, Ints, aligned, counted, first_differences, group_labels
from unhang.model import CollectiveTable, different
from unhang.numeric import np, npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
_SAMPLED_RANKS = 32
_MOST_ROWS = 4000
_FEW_KINDS = 64
_RECURS = 0.9  # share of calls that must equal the call one period before
_EQUALLY = 0.002


@dataclass(frozen=True, slots=True)
class RunPart:
    """What some ranks of one run give to a comparison.

    `sizes`: sizes and dtypes by use, in the stretch that both runs recorded. `uses`: calls and seconds of each rank that
    makes such calls. A use is description and op, tab-separated. `steps`: calls and seconds of a step, of sampled ranks.
    """

    calls: int
    sizes: Mapping[str, set[str]]
    uses: Mapping[str, tuple[Ints, Floats]]
    steps: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Part:
    """What the same ranks of both runs give to a comparison; parts of different ranks add up."""

    compared: int
    ours: RunPart
    theirs: RunPart
    firsts: Sequence[FirstDifference]


def part_of(
    ours: CollectiveTable,
    theirs: CollectiveTable,
    labels: tuple[Ints, Ints] | None = None,
    samples: tuple[Collection[int], Collection[int]] | None = None,
) -> Part:
    """Compares the calls of the same ranks. `labels`: see `group_labels`; `samples`: ranks whose steps are timed."""
    pairs = aligned(ours, theirs, labels or group_labels(ours, theirs))
    samples = samples or (sampled(ranks_of_calls(ours)), sampled(ranks_of_calls(theirs)))
    compared = int((pairs.our_partners >= 0).sum())
    left = _run_part(ours, pairs.our_rows, samples[0])
    right = _run_part(theirs, pairs.their_rows, samples[1])
    return Part(compared, left, right, first_differences(ours, theirs, pairs))


def _run_part(table: CollectiveTable, rows: Ints, sample: Collection[int]) -> RunPart:
    number_N, names = _described(table)
    sizes = _sizes_by_op(table, rows, number_N, names)
    steps = [step for rank in sorted(sample) if (step := step_of(table, rank)) is not None]
    return RunPart(len(table), sizes, _uses(table, number_N, names), steps)


def ranks_of_calls(table: CollectiveTable) -> set[int]:
    """The ranks that a table has calls of."""
    return set(table["rank"][_first_rows(table)].tolist())


def _first_rows(table: CollectiveTable) -> Ints:
    """The first row of each rank; the ranks are sorted."""
    return run_starts(table["rank"])


def rank_ordinals(table: CollectiveTable) -> Ints:
    """`[N]` which one of the table's ranks made each call."""
    first = _first_rows(table)
    return np.repeat(np.arange(len(first)), np.diff(first, append=len(table)))


def _described(table: CollectiveTable) -> tuple[Ints, list[str]]:
    """`[N]` the number of each row's (description, op), and `G * ops` names of these numbers, tab-separated."""
    descs: dict[str, int] = {}
    desc_G = np.array([descs.setdefault(str(g), len(descs)) for g in table.groups] or [0], dtype=np.int64)
    ops: dict[str, int] = {}
    op_O = np.array([ops.setdefault(bare_op(op), len(ops)) for op in table.ops] or [0], dtype=np.int64)
    names = [f"{desc}\t{op}" for desc in descs for op in ops]
    number_N = (desc_G * max(len(ops), 1))[table["group"]]
    number_N += op_O[table["op"]]
    return number_N, names


def _sizes_by_op(table: CollectiveTable, rows: Ints, number_N: Ints, names: Sequence[str]) -> dict[str, set[str]]:
    key_N = number_N[rows]
    spans = len(table.sizes) + 1, len(table.dtypes) + 1
    for name, span in zip(("in_sizes", "dtype"), spans, strict=True):
        key_N *= span
        key_N += table[name][rows]
    found: dict[str, set[str]] = {}
    for value in counted(key_N, len(names) * spans[0] * spans[1])[0].tolist():
        rest, dtype = divmod(value, spans[1])
        number, sizes = divmod(rest, spans[0])
        shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in table.sizes[sizes])
        found.setdefault(names[number], set()).add(f"{shapes} {table.dtypes[dtype]}".strip())
    return found


def _uses(table: CollectiveTable, number_N: Ints, names: Sequence[str]) -> dict[str, tuple[Ints, Floats]]:
    """Of each use, the calls of the ranks that make such calls, and the seconds between their first and last call."""
    if not len(table):
        return {}
    created_N, first = table["created_ns"], _first_rows(table)
    span_R = (np.maximum.reduceat(created_N, first) - np.minimum.reduceat(created_N, first)) / 1e9
    key_N = number_N * len(first) + rank_ordinals(table)
    keys, count = counted(key_N, len(names) * len(first))
    number, place = np.divmod(keys, len(first))
    used = pairwise([*run_starts(number).tolist(), len(number)])
    return {names[number[begin]]: (count[begin:end], span_R[place[begin:end]]) for begin, end in used}


def sampled(ranks: Collection[int]) -> list[int]:
    """The ranks whose steps are timed: some, from the first to the last."""
    ordered = sorted(ranks)
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _SAMPLED_RANKS)).astype(np.int64)
    return [ordered[i] for i in different(places).tolist()]


def step_of(table: CollectiveTable, rank: int) -> tuple[int, float] | None:
    """Calls and seconds of a step of one rank."""
    rows = table.rank_rows(rank)
    rows = slice(max(rows.start, rows.stop - _MOST_ROWS), rows.stop)
    group, op, sizes = (table[name][rows].astype(np.int64) for name in ("group", "op", "in_sizes"))
    kind = (group * (len(table.ops) + 1) + op) * (len(table.sizes) + 1) + sizes
    period = _period(kind)
    if not period:
        return None
    created = table["created_ns"][rows]
    apart = (created[period:] - created[:-period])[kind[period:] == kind[:-period]]
    return period, float(np.median(apart)) / 1e9


def _period(kind_N: Ints) -> int:
    """The least distance at which nearly all calls equal each other, 0 where there is none within a third of them."""
    most = len(kind_N) // 3
    if most < 1:
        return 0
    share = _equal_at(kind_N, most) / (len(kind_N) - np.arange(1, most + 1))
    if share.max() < _RECURS:
        return 0
    return int(np.argmax(share >= share.max() - _EQUALLY)) + 1


def _equal_at(kind_N: Ints, most: int) -> Ints:
    """How many calls equal the one 1, 2, ... `most` places before: the sum of the autocorrelations of the kinds."""
    kinds, code_N = np.unique(kind_N, return_inverse=True)
    if len(kinds) > _FEW_KINDS:
        return np.array([np.count_nonzero(kind_N[p:] == kind_N[:-p]) for p in range(1, most + 1)])
    size = 1 << (len(kind_N) + most).bit_length()
    is_kind_KN = np.zeros((len(kinds), size))
    is_kind_KN[code_N.reshape(-1), np.arange(len(kind_N))] = 1
    power = np.square(np.abs(np.fft.rfft(is_kind_KN))).sum(axis=0)
    return np.rint(np.fft.irfft(power, size)[1 : most + 1]).astype(np.int64)
