"""Which collectives are tried, in which order: a pure function of the world's size, so that all ranks have the same plan.

And what one rank says of one collective: frozen, and nothing in it that JSON cannot hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from unhang.errors import WrongUsage

DTYPES = ("float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")
DEFAULT_LARGEST_BYTES = 4 << 20
ODD_COUNT = 1003
LARGE_ODD_COUNT = 1_000_003
_SIZE_BYTES = 4
_MOST_ROOTS = 8

# op: what it is selected by besides its own name.
SIZED = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter", "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "batch_isend_irecv": "send_recv",
}  # fmt: skip
ONCE = {
    "all_gather_uneven": "all_gather", "all_to_all_single_uneven": "all_to_all", "send_recv": "send_recv",
    "isend_irecv": "send_recv", "barrier": "barrier", "monitored_barrier": "barrier",
    "coalesced_all_reduce": "coalesced", "coalesced_all_gather": "coalesced", "coalesced_reduce_scatter": "coalesced",
    "all_gather_object": "object", "broadcast_object_list": "object", "gather_object": "object",
    "scatter_object_list": "object",
}  # fmt: skip
FAMILIES = {
    "init_process_group": "init_process_group", **SIZED, **ONCE, "new_group": "new_group",
    "groups_in_order": "new_group", "benchmark": "benchmark", "compute_speed": "benchmark",
}  # fmt: skip
_POINT_TO_POINT = ("send_recv", "isend_irecv", "batch_isend_irecv")
_SIZELESS = ("barrier", "monitored_barrier", "new_group", "init_process_group", "compute_speed")
_REDUCTIONS = (("min", "float32"), ("max", "float32"), ("product", "float32"), ("avg", "float32"), ("premul_sum", "float32"),
               ("min", "int64"), ("max", "int64"), ("band", "int32"), ("bor", "int32"), ("bxor", "int32"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One collective. `size`: elements of the largest buffer; `root`: position in the group; `reduction`: a ReduceOp's name."""

    op: str
    size: int = ODD_COUNT
    dtype: str = "float32"
    group: str = "all"
    root: int = 0
    reduction: str = "sum"

    @property
    def name(self) -> str:
        """What it is called in a report."""
        words = [self.op]
        words += [self.reduction] if self.reduction != "sum" else []
        words += [f"root {self.root}"] if self.root else []
        words += [f"{self.size} {self.dtype}"] if self.op not in _SIZELESS else []
        words += [f"in {self.group}"] if self.group != "all" else []
        return " ".join(words)


@cache
def splits(world_size: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The groups by the name of the split; each group has two ranks or more, and pairs come in two rounds."""
    ranks = tuple(range(world_size))
    found: dict[str, tuple[tuple[int, ...], ...]] = {"all": (ranks,)}
    if world_size >= 4:
        found["halves"] = (ranks[: world_size // 2], ranks[world_size // 2 :])
    if world_size >= 3:
        found["pairs"] = _pairs(ranks)
        found["other pairs"] = _pairs((*ranks[1:], *ranks[: 1 - world_size % 2]))
    return found


def _pairs(ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    # In rising order, as torch sorts the ranks of a group.
    return tuple(tuple(sorted(pair)) for pair in zip(ranks[::2], ranks[1::2], strict=False))


def group_of(split: str, rank: int, world_size: int) -> tuple[int, ...]:
    """The members of the rank's own group; () if it is in none."""
    return next((group for group in splits(world_size)[split] if rank in group), ())


def check_names(names: Collection[str]) -> None:
    """Refuses names that select nothing.

    Raises:
        WrongUsage: one of them is no collective.
    """
    known = sorted({"all", *FAMILIES, *FAMILIES.values()} - {"init_process_group"})
    for name in names:
        if name not in known:
            raise WrongUsage(f"there is no collective {name!r} to check; there are: {', '.join(known)}")
    if not names:
        raise WrongUsage(f"no collective is named; there are: {', '.join(known)}")


def make_plan(
    world_size: int, names: Sequence[str] = ("all",), largest_bytes: int = DEFAULT_LARGEST_BYTES
) -> tuple[Case, ...]:
    """The cases in their order. The groups that a selected case needs are always made.

    Raises:
        WrongUsage: a name selects nothing.
    """
    check_names(names)
    wanted = set(names)

    def is_wanted(case: Case) -> bool:
        return bool(wanted & {"all", case.op, FAMILIES[case.op]})

    chosen = [case for case in _everything(world_size, max(largest_bytes, _SIZE_BYTES)) if is_wanted(case)]
    needed = {case.group for case in chosen if case.op != "new_group"} - {"all"}
    if any(case.op == "groups_in_order" for case in chosen):
        needed |= splits(world_size).keys() - {"all"}
    made = {case.group for case in chosen if case.op == "new_group"}
    more = [Case("new_group", 0, group=split) for split in splits(world_size) if split in needed - made]
    first = [case for case in chosen if case.op == "new_group"]
    return (Case("init_process_group", 0), *more, *first, *(case for case in chosen if case.op != "new_group"))


def _everything(world_size: int, largest_bytes: int) -> Iterator[Case]:
    yield Case("compute_speed", 0)
    for split in splits(world_size):
        yield Case("new_group", 0, group=split)
    for op in (*SIZED, *ONCE):
        if world_size == 1 and op in _POINT_TO_POINT:
            continue
        if op in SIZED:
            yield from (Case(op, size) for size in _sizes(largest_bytes))
            yield from (Case(op, dtype=dtype) for dtype in DTYPES)
        else:
            yield Case(op)
        if op == "all_reduce":
            yield from (Case(op, dtype=dtype, reduction=reduction) for reduction, dtype in _REDUCTIONS)
        if op in ("broadcast", "reduce", "gather", "scatter"):
            step = -(-world_size // _MOST_ROOTS)
            yield from (Case(op, root=root) for root in range(step, world_size, step))
        yield from (Case(op, group=split) for split in splits(world_size) if split != "all")
    yield Case("groups_in_order")
    for size in _sizes(largest_bytes):
        yield Case("benchmark", size)


def _sizes(largest_bytes: int) -> list[int]:
    counts = {1, 256, ODD_COUNT, 1 << 18, LARGE_ODD_COUNT, largest_bytes // _SIZE_BYTES}
    return sorted(count for count in counts if count * _SIZE_BYTES <= largest_bytes)


class State(StrEnum):
    """How a case went on one rank."""

    OK = "ok"  # it ended, and every element was right
    WRONG = "wrong"  # it ended with a wrong result
    SKIPPED = "skipped"  # torch refuses it here; `reason` is torch's own
    OUTSIDE = "outside"  # this rank is in none of the case's groups
    ERROR = "error"  # it raised
    HUNG = "hung"  # it did not end within its limit, or was never entered (`entered`)
    DIED = "died"  # the worker ended in it
    NOT_RUN = "not_run"  # `reason` says why


@dataclass(frozen=True, slots=True)
class Wrong:
    """Wrong elements, as one rank saw them.

    `sources`: the ranks whose data was wrong; () where elements mix the data of all. `missing_rank`, `doubled_rank`: every
    wrong element is exactly what it would be without the contribution of this rank, or with two of it.
    """

    first_index: int
    expected: str
    got: str
    count: int
    size: int
    sources: tuple[int, ...] = ()
    missing_rank: int | None = None
    doubled_rank: int | None = None

    def __str__(self) -> str:
        text = f"element {self.first_index} is {self.got}, not {self.expected} ({self.count} of {self.size} wrong)"
        if self.missing_rank is not None:
            return f"{text}, as if rank {self.missing_rank} had contributed nothing"
        if self.doubled_rank is not None:
            return f"{text}, as if rank {self.doubled_rank} had contributed twice"
        return text


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where a worker stood when its limit had passed.

    `stack`: "file:line in function", outermost first. `issued`: how many collectives torch has recorded there in all, None
    where it records none; equal programs have equal numbers, so the rank with the lowest has not yet made the call that
    the others wait in. Point-to-point calls may be missing from it.
    """

    stack: tuple[str, ...] = ()
    issued: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Times of repeated runs of one thing, in seconds: `low_s` is the shortest, `mad_s` the median absolute deviation.

    `busbw_gbps`: gigabytes per second, as nccl-tests reckon bus bandwidth.
    """

    median_s: float
    low_s: float
    mad_s: float
    repeats: int
    busbw_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case on one rank.

    `case` is its number in the plan, the same on all ranks. `group` is a split's name: `group_of` has its members. `entered`:
    the call had been reached.
    """

    case: int
    name: str
    op: str
    group: str
    state: State
    entered: bool = True
    seconds: float | None = None
    reason: str = ""
    wrong: Wrong | None = None
    stuck: Stuck | None = None
    waiting_for: tuple[int, ...] = ()
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds. `settle_s`: how long a hung worker is kept, so that its peers notice too."""

    case_s: float = 10.0
    start_s: float = 60.0
    run_s: float = 300.0
    settle_s: float = 2.0


def as_fields(thing: Any) -> Any:
    """What the standard `json` can write of a result."""
    return msgspec.to_builtins(thing)
