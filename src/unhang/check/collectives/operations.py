"""How each collective is prepared, called and checked. Imports torch: only the worker imports this file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from unhang.check.collectives.patterns import Bench, Place, Prepared, compare, compare_parts
from unhang.check.collectives.suite import Case, Figures, Wrong, group_of, splits

_REPEATS = 12
_DURATION_S, _BLOCK_S, _MOST_BLOCKS = 0.3, 0.01, 60
_FLAT_NAMES = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}


def _reduce_op(name: str) -> Any:
    if name == "premul_sum":
        make = getattr(dist, "_make_nccl_premul_sum", None)
        if make is None:
            raise NotImplementedError("this torch does not support PREMUL_SUM")
        return make(2.0)
    return getattr(dist.ReduceOp, name.upper())


def _flat(name: str) -> Any:
    """The function by its name of today: newer torch warns about the old one."""
    return getattr(dist, _FLAT_NAMES[name], None) or getattr(dist, name)


def _all_reduce(p: Place) -> Prepared:
    tensor, op = p.contributed(p.count), _reduce_op(p.case.reduction)
    return Prepared(lambda: dist.all_reduce(tensor, op, group=p.group), lambda: p.compare_reduced(tensor, p.count))


def _all_gather(p: Place) -> Prepared:
    is_uneven = p.case.op.endswith("uneven")
    mine = p.pattern.moved(p.me, p.chunk + p.position * is_uneven)
    parts = [p.pattern.empty(p.chunk + i * is_uneven) for i in range(p.members)]
    return Prepared(lambda: dist.all_gather(parts, mine, group=p.group), lambda: p.compare_gathered(parts))


def _all_gather_into_tensor(p: Place) -> Prepared:
    mine, whole = p.pattern.moved(p.me, p.chunk), p.pattern.empty(p.chunk * p.members)
    call = _flat("all_gather_into_tensor")
    return Prepared(lambda: call(whole, mine, group=p.group), lambda: p.compare_gathered(list(whole.split(p.chunk))))


def _reduce_scatter(p: Place) -> Prepared:
    whole, mine = p.contributed(p.chunk * p.members), p.pattern.empty(p.chunk)
    parts = list(whole.split(p.chunk))

    def call() -> None:
        if p.case.op == "reduce_scatter":
            dist.reduce_scatter(mine, parts, group=p.group)
        else:
            _flat("reduce_scatter_tensor")(mine, whole, group=p.group)

    return Prepared(call, lambda: p.compare_reduced(mine, len(whole), p.position * p.chunk))


def _all_to_all(p: Place) -> Prepared:
    sent, got = p.pattern.moved(p.me, p.chunk * p.members), p.pattern.empty(p.chunk * p.members)
    outputs, inputs = list(got.split(p.chunk)), list(sent.split(p.chunk))

    def call() -> None:
        if p.case.op == "all_to_all":
            dist.all_to_all(outputs, inputs, group=p.group)
        else:
            dist.all_to_all_single(got, sent, group=p.group)

    return Prepared(call, lambda: p.compare_scattered(outputs))


def _all_to_all_uneven(p: Place) -> Prepared:
    def splits_of(sender: int) -> list[int]:
        return [p.chunk + (sender + receiver) % 3 for receiver in range(p.members)]

    own = splits_of(p.position)
    sent = p.pattern.moved(p.me, sum(own))
    received = [splits_of(sender)[p.position] for sender in range(p.members)]
    got = p.pattern.empty(sum(received))

    def check() -> Wrong | None:
        parts = []
        for sender, part in enumerate(got.split(received)):
            lengths = splits_of(sender)
            whole = p.pattern.moved(p.ranks[sender], sum(lengths))
            parts.append((part, whole.split(lengths)[p.position], p.ranks[sender]))
        return compare_parts(parts)

    return Prepared(lambda: dist.all_to_all_single(got, sent, received, own, group=p.group), check)


def _broadcast(p: Place) -> Prepared:
    tensor = p.pattern.moved(p.me, p.count) if p.is_root else p.pattern.empty(p.count)
    call = partial(dist.broadcast, tensor, p.root, group=p.group)
    return Prepared(call, lambda: compare(tensor, p.pattern.moved(p.root, p.count), [p.root]))


def _reduce(p: Place) -> Prepared:
    tensor = p.contributed(p.count)
    call = partial(dist.reduce, tensor, p.root, group=p.group)
    return Prepared(call, lambda: p.compare_reduced(tensor, p.count) if p.is_root else None)


def _gather(p: Place) -> Prepared:
    mine = p.pattern.moved(p.me, p.chunk)
    parts = [p.pattern.empty(p.chunk) for _ in p.ranks] if p.is_root else None
    call = partial(dist.gather, mine, parts, dst=p.root, group=p.group)
    return Prepared(call, lambda: p.compare_gathered(parts) if parts else None)


def _scatter(p: Place) -> Prepared:
    whole = p.pattern.moved(p.root, p.chunk * p.members)
    parts = list(whole.split(p.chunk)) if p.is_root else None
    mine, expected = p.pattern.empty(p.chunk), whole.split(p.chunk)[p.position]
    call = partial(dist.scatter, mine, parts, src=p.root, group=p.group)
    return Prepared(call, lambda: compare(mine, expected, [p.root]))


def _ring(p: Place) -> Prepared:
    """Every rank sends to the next one of its group. Every other one receives first: with NCCL a send waits for its receiver."""
    sent, got = p.pattern.moved(p.me, p.count), p.pattern.empty(p.count)
    is_sending_first = p.position % 2 == 0

    def blocking() -> None:
        if is_sending_first:
            dist.send(sent, p.next, group=p.group)
        dist.recv(got, p.previous, group=p.group)
        if not is_sending_first:
            dist.send(sent, p.next, group=p.group)

    def separately() -> None:
        first = dist.isend(sent, p.next, group=p.group) if is_sending_first else None
        receiving = dist.irecv(got, p.previous, group=p.group)
        second = None if is_sending_first else dist.isend(sent, p.next, group=p.group)
        for work in (first, receiving, second):
            if work is not None:
                work.wait()

    def together() -> None:
        ops = [dist.P2POp(dist.isend, sent, p.next, p.group), dist.P2POp(dist.irecv, got, p.previous, p.group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    call = {"send_recv": blocking, "isend_irecv": separately, "batch_isend_irecv": together}[p.case.op]
    return Prepared(call, lambda: compare(got, p.pattern.moved(p.previous, p.count), [p.previous]))


def _barrier(p: Place) -> Prepared:
    """Whoever is through must find that all have come: they sign in the store, not over the backend."""
    key = f"barrier/{p.number}/{p.ranks[0]}"
    p.bench.store.add(key, 1)

    def call() -> None:
        if p.case.op == "monitored_barrier":
            dist.monitored_barrier(group=p.group, timeout=p.bench.timeout)
        else:
            dist.barrier(group=p.group)

    def check() -> Wrong | None:
        came = p.bench.store.add(key, 0)
        return Wrong(0, f"{p.members} ranks at the barrier", f"{came}", 1, 1) if came != p.members else None

    return Prepared(call, check)


def _coalesced(p: Place) -> Prepared:
    from torch.distributed.distributed_c10d import _coalescing_manager

    make = {"all_reduce": _all_reduce, "all_gather": _all_gather_into_tensor, "reduce_scatter": _reduce_scatter}
    inner = make[p.case.op.removeprefix("coalesced_")]
    both = [inner(p), inner(p)]
    device = p.bench.device if p.bench.device.type == "cuda" else None

    def call() -> None:
        with _coalescing_manager(p.group, device):
            for one in both:
                one.call()

    return Prepared(call, lambda: both[0].check() or both[1].check())


def _object(p: Place) -> Prepared:
    def thing(rank: int) -> dict[str, Any]:
        return {"rank": rank, "case": p.number, "text": "é" * (rank % 7), "numbers": [rank] * (1 + rank % 5)}

    mine = thing(p.me)
    got: list[Any] = [None] * (1 if p.case.op == "scatter_object_list" else p.members)
    if p.case.op == "broadcast_object_list" and p.is_root:
        got = [thing(rank) for rank in p.ranks]
    calls: dict[str, Callable[[], object]] = {
        "all_gather_object": lambda: dist.all_gather_object(got, mine, group=p.group),
        "gather_object": lambda: dist.gather_object(mine, got if p.is_root else None, p.root, group=p.group),
        "broadcast_object_list": lambda: dist.broadcast_object_list(got, p.root, group=p.group),
        "scatter_object_list": lambda: dist.scatter_object_list(
            got, [thing(rank) for rank in p.ranks] if p.is_root else None, p.root, group=p.group
        ),
    }

    def check() -> Wrong | None:
        expected = [mine] if p.case.op == "scatter_object_list" else [thing(rank) for rank in p.ranks]
        if got == expected or (p.case.op == "gather_object" and not p.is_root):
            return None
        bad = [i for i, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other]
        has_source = p.case.op in ("all_gather_object", "gather_object")
        sources = tuple(p.ranks[i] for i in bad) if has_source else (p.root,)
        return Wrong(bad[0], str(expected[bad[0]])[:200], str(got[bad[0]])[:200], len(bad), len(got), sources)

    return Prepared(calls[p.case.op], check)


def _new_group(p: Place) -> Prepared:
    """Makes the groups of a split: the halves as user code does, all ranks for all groups; pairs by their own members."""
    split = p.case.group

    def call() -> None:
        if split.endswith("pairs"):
            p.bench.groups[split] = dist.new_group(
                list(p.ranks), timeout=p.bench.timeout, use_local_synchronization=True, group_desc=f"check {split}"
            )
            return
        for ranks in splits(p.bench.world_size)[split]:
            group = dist.new_group(list(ranks), timeout=p.bench.timeout, group_desc=f"check {split}")
            if p.me in ranks:
                p.bench.groups[split] = group

    def check() -> Wrong | None:
        got = tuple(dist.get_process_group_ranks(p.bench.groups[split]))
        return Wrong(0, f"ranks {p.ranks}", f"ranks {got}", 1, 1) if got != p.ranks else None

    return Prepared(call, check)


def _groups_in_order(p: Place) -> Prepared:
    """All groups of this rank, one after the other, and the whole world again; each call waits for the one before."""
    mine = [split for split in splits(p.bench.world_size) if group_of(split, p.me, p.bench.world_size)]
    places = [Place(p.bench, Case("all_reduce", p.count, group=split), p.number) for split in (*mine, "all")]
    tensors = [place.contributed(p.count) for place in places]

    def call() -> None:
        for tensor, place in zip(tensors, places, strict=True):
            dist.all_reduce(tensor, group=place.group)

    def check() -> Wrong | None:
        found = (one.compare_reduced(t, p.count) for t, one in zip(tensors, places, strict=True))
        return next((wrong for wrong in found if wrong), None)

    return Prepared(call, check)


def _benchmark(p: Place) -> Prepared:
    source = p.contributed(p.count)
    tensor = source.clone()

    def call() -> None:
        times_s = []
        for _ in range(_REPEATS):
            tensor.copy_(source)
            times_s.append(timed(lambda: dist.all_reduce(tensor, group=p.group), p.bench.sync))
        moved_bytes = 2 * (p.members - 1) / p.members * p.count * tensor.element_size()  # as nccl-tests reckon them
        done.figures = figures_of(times_s[2:], moved_bytes)

    done = Prepared(call, lambda: p.compare_reduced(tensor, p.count))
    return done


def _compute_speed(p: Place) -> Prepared:
    def call() -> None:
        done.figures = compute_speed(p.bench.device)

    done = Prepared(call, lambda: None)
    return done


_MAKERS: dict[str, Callable[[Place], Prepared]] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "all_gather_uneven": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor, "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter, "all_to_all": _all_to_all, "all_to_all_single": _all_to_all,
    "all_to_all_single_uneven": _all_to_all_uneven, "broadcast": _broadcast, "reduce": _reduce, "gather": _gather,
    "scatter": _scatter, "batch_isend_irecv": _ring, "send_recv": _ring, "isend_irecv": _ring, "barrier": _barrier,
    "monitored_barrier": _barrier, "coalesced_all_reduce": _coalesced, "coalesced_all_gather": _coalesced,
    "coalesced_reduce_scatter": _coalesced, "all_gather_object": _object, "broadcast_object_list": _object,
    "gather_object": _object, "scatter_object_list": _object, "new_group": _new_group,
    "groups_in_order": _groups_in_order, "benchmark": _benchmark, "compute_speed": _compute_speed,
}  # fmt: skip


def keep_group_count(bench: Bench) -> None:
    """Makes a group of this rank alone.

    torch names a group that only its members make by its ranks and by how many groups the process has: a rank that has
    made fewer waits for ever in its next one.
    """
    dist.new_group([bench.rank], timeout=bench.timeout, use_local_synchronization=True, group_desc="check alone")


def prepare(bench: Bench, case: Case, number: int) -> Prepared:
    """Makes the inputs and outputs of one case on this rank, which must be in one of its groups."""
    return _MAKERS[case.op](Place(bench, case, number))


def compute_speed(device: Any = "cpu", duration_s: float = _DURATION_S) -> Figures:
    """The time of one matrix product on the device.

    It is taken in blocks of about 10 ms. The time in which the thread could run and had to wait for its processor is left
    out: that is the load of the machine, not a slow rank.

    Blocks: about `duration_s`.
    """
    device = torch.device(device)
    side = 4096 if device.type == "cuda" else 256
    left = torch.ones(side, side, device=device)
    result = torch.empty_like(left)

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def block(products: int) -> None:
        for _ in range(products):
            torch.mm(left, left, out=result)

    timed(lambda: block(2), sync)
    products = max(1, round(_BLOCK_S / max(timed(lambda: block(3), sync) / 3, 1e-6)))
    end = time.monotonic() + duration_s
    times_s: list[float] = []
    while len(times_s) < 3 or (time.monotonic() < end and len(times_s) < _MOST_BLOCKS):
        started = time.perf_counter()
        queued_s = _queued_s()
        timed(lambda: block(products), sync)
        queued_s = _queued_s() - queued_s
        times_s.append((time.perf_counter() - started - queued_s) / products)
    return figures_of(times_s)


def _queued_s() -> float:
    """For how long this thread has stood in the kernel's queue, ready to run; 0 where the kernel does not count it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def timed(call: Callable[[], object], sync: Callable[[], None]) -> float:
    """Seconds until the device has done it."""
    started = time.perf_counter()
    call()
    sync()
    return time.perf_counter() - started


def figures_of(times_s: Sequence[float], moved_bytes: float = 0.0) -> Figures:
    """Median, shortest and median absolute deviation of one time or more; with the bytes that each moved, GB/s."""
    middle = median(times_s)
    busbw_gbps = moved_bytes / middle / 1e9 if moved_bytes and middle else None
    return Figures(middle, min(times_s), median(abs(t - middle) for t in times_s), len(times_s), busbw_gbps)
