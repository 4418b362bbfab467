"""Faults of what ranks do together: calls left out, added, swapped, unlike, in another order or with a wrong result; batches too few, late or broken."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import program
from .fault import (
    BATCH,
    CALL,
    DATA_FAMILY,
    EVER_S,
    OP,
    RANK,
    STEP,
    Armed,
    Fault,
    Parameter,
    Ready,
    from_now_on,
    once_at,
    rank_of,
    seconds,
)
from .program import COLLECTIVES, TRANSFERS, Call

_CALLS = "explicit collective call (those inside DDP are made by C++ and cannot be reached)"
_CALLED = (RANK, STEP, CALL, OP)
_DIVERGED = ("rank-dependent-collective", "stacks-disagree")


def is_wanted(armed: Armed, call: Call) -> bool:
    """Whether a call is of the functions that the fault counts."""
    op = armed.value("op") or "any"
    return call.name in COLLECTIVES if op == "any" else call.name == op


def _at_call(act: Callable[[Armed, Call], None], can: Callable[[Call], bool] = lambda call: True) -> Ready:
    """Hands the call whose turn it is, among those that the fault can strike, to `act`."""
    return once_at(program.calls, act, lambda armed, call: is_wanted(armed, call) and can(call))


def named(armed: Armed, call: Call) -> str:
    """The call, in words."""
    return f"{call.name} #{armed.visits}"


def _torch() -> Any:
    return sys.modules["torch"]


def _dist() -> Any:
    return sys.modules["torch.distributed"]


def numbers(fill: float = 0.0) -> Any:
    """A tensor of one element, where the backend of the program wants it."""
    return _torch().full((1,), fill, device="cuda" if "nccl" in str(_dist().get_backend()) else "cpu")


def _skip(armed: Armed, call: Call) -> None:
    armed.strikes(f"skips {named(armed, call)}")
    call.is_skipped = True


def _extra(armed: Armed, call: Call) -> None:
    """As large as the struck call where that is a reduction too: the first pair then fits, and only what follows is shifted."""
    armed.strikes(f"makes an all_reduce more, before {named(armed, call)}")
    tensor = call.get("tensor") if call.name == "all_reduce" else None
    extra = numbers() if tensor is None else tensor.detach().clone()
    _dist().all_reduce(extra, group=call.get("group"))


def _reorder(armed: Armed) -> None:
    held: list[Call] = []

    def listen(call: Call) -> None:
        if held and call.name in COLLECTIVES:
            late = held.pop()
            armed.strikes(f"makes {late.name} only after {call.name}")
            call.then(late.make)
        elif call.name in COLLECTIVES and armed.is_due:
            held.append(call)
            call.is_skipped = True

    program.calls.append(listen)


def _can_be_unlike(armed: Armed, call: Call) -> bool:
    """Reductions unless another function is given: some backends let a receiver of a broadcast get less than it expects."""
    kinds = ("all_reduce", "reduce") if armed.value("op") == "any" else (armed.value("op"),)
    return call.name in kinds and call.get("tensor") is not None


def _shape(armed: Armed, call: Call) -> None:
    flat = call.get("tensor").detach().reshape(-1)
    armed.strikes(f"makes {named(armed, call)} with {flat.numel() + 1} elements instead of {flat.numel()}")
    call.put(tensor=_torch().cat([flat, flat[:1]]))


def _dtype(armed: Armed, call: Call) -> None:
    tensor = call.get("tensor").detach()
    other = _torch().float32 if tensor.dtype == _torch().float64 else _torch().float64
    armed.strikes(f"makes {named(armed, call)} with {other} instead of {tensor.dtype}")
    call.put(tensor=tensor.to(other))


def _other_group(call: Call) -> Any:
    """Another group of the program that this rank is a member of, or None."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    used = call.get("group") or _dist().group.WORLD
    mine = [g for g in c10d._world.pg_map if g is not used and not c10d._rank_not_in_group(g)]
    return mine[0] if mine else None


def _strike_group(armed: Armed, call: Call) -> None:
    armed.strikes(f"makes {named(armed, call)} in another group")
    call.put(group=_other_group(call))


def _root_name(call: Call) -> str:
    return next((name for name in ("src", "dst") if call.get(name) is not None), "")


def _root(armed: Armed, call: Call) -> None:
    name = _root_name(call)
    before = call.get(name)
    after = (before + 1) % _dist().get_world_size()
    armed.strikes(f"makes {named(armed, call)} with {name}={after} instead of {before}")
    call.put(**{name: after})


def _reduce_op(armed: Armed, call: Call) -> None:
    kinds = _dist().ReduceOp
    after = kinds.SUM if call.get("op") == kinds.MAX else kinds.MAX
    armed.strikes(f"makes {named(armed, call)} with another reduction")
    call.put(op=after)


def _raise() -> None:
    raise ValueError("a sample cannot be decoded (injected)")


def _swallow(armed: Armed, call: Call) -> None:
    armed.strikes(f"swallows an exception in the place of {named(armed, call)}")
    call.is_skipped = True
    try:
        program.at_line(program.program_line(), _raise)
    except ValueError as error:
        print(f"ignored: {error}", file=sys.stderr, flush=True)


def _no_wait(armed: Armed, call: Call) -> None:
    armed.strikes(f"does not wait for {named(armed, call)}")
    kept: list[Any] = []

    def hide(work: Any) -> program.Done:
        kept.append(work)
        done = program.Done()
        done.work = work  # type: ignore[attr-defined]
        return done

    call.change_result = hide


def _no_group(armed: Armed, call: Call) -> None:
    armed.strikes("does not take part in new_group")
    call.is_skipped = True


_CALL_FAMILY = "collectives"
OF_CALLS = (
    Fault("skip_collective", _CALL_FAMILY, "leaves a collective out", _CALLED, (*_DIVERGED, "skipped-step"),
          "code-divergence", True, _CALLS, _at_call(_skip)),
    Fault("extra_collective", _CALL_FAMILY, "makes one all_reduce too many", _CALLED, _DIVERGED,
          "code-divergence", True, _CALLS, _at_call(_extra)),
    Fault("reorder_collective", _CALL_FAMILY, "swaps a collective with the next one", _CALLED,
          _DIVERGED, "code-divergence", True, _CALLS, _reorder),
    Fault("wrong_shape", _CALL_FAMILY, "gives a tensor one element too many", _CALLED, ("size-mismatch", "gloo-sizes"),
          "size-mismatch", False, _CALLS, once_at(program.calls, _shape, _can_be_unlike)),
    Fault("wrong_dtype", _CALL_FAMILY, "gives a tensor of another type", _CALLED, ("size-mismatch", "gloo-sizes"),
          "size-mismatch", False, _CALLS, once_at(program.calls, _dtype, _can_be_unlike)),
    Fault("wrong_group", _CALL_FAMILY, "uses another group of the program", _CALLED, ("collective-order-race", *_DIVERGED),
          "collective-order-race", True, "second group, whose members make explicit collective calls",
          _at_call(_strike_group, lambda call: _other_group(call) is not None)),
    Fault("wrong_root", _CALL_FAMILY, "broadcasts from, or reduces to, another rank", _CALLED,
          (*_DIVERGED, "roots-disagree"),
          "code-divergence", True, "explicit collective with a root", _at_call(_root, lambda call: bool(_root_name(call)))),
    Fault("wrong_reduce_op", _CALL_FAMILY, "takes the maximum instead of the sum", _CALLED, ("silent-desync",),
          "", False, "explicit reduction", _at_call(_reduce_op, lambda call: call.get("op") is not None)),
    Fault("missing_wait", _CALL_FAMILY, "does not wait for an asynchronous call", _CALLED, ("silent-desync",),
          "", False, "asynchronous collective", _at_call(_no_wait, lambda call: bool(call.get("async_op")))),
    Fault("swallowed_exception", _CALL_FAMILY, "raises an exception in place of a collective, prints it, and goes on", _CALLED,
          ("swallowed-exception",), "code-divergence", True, _CALLS, _at_call(_swallow)),
    Fault("subgroup_not_created_by_all", _CALL_FAMILY, "leaves new_group out", (RANK, CALL),
          ("subgroup-not-created-by-all",), "code-divergence", True, "call of new_group",
          once_at(program.calls, _no_group, lambda _, call: call.name == "new_group")),
)  # fmt: skip


def _race(armed: Armed) -> None:
    """A second thread of every rank gathers something, in the same group; only on the struck rank it comes first."""

    def listen(call: Call) -> None:
        if not is_wanted(armed, call) or not armed.is_turn:
            return
        is_first = armed.is_here
        if is_first:
            armed.strikes(f"lets a second thread gather before {named(armed, call)}, and not after it as the others")
        place, has_begun = program.program_line(), threading.Event()

        def gather() -> None:
            dist = _dist()
            parts = [numbers() for _ in range(dist.get_world_size(call.get("group")))]
            time.sleep(0 if is_first else armed.value("seconds"))
            has_begun.set()
            program.in_the_dark(
                lambda: program.at_line(place, lambda: dist.all_gather(parts, numbers(1.0), call.get("group")))
            )

        threading.Thread(target=gather, name="gathers in the background", daemon=True).start()
        if is_first:
            has_begun.wait()
            time.sleep(armed.value("seconds") / 2)

    program.calls.append(listen)


def _cycle(armed: Armed, call: Call) -> None:
    """Every rank receives from its left neighbour, and nobody sends."""
    dist = _dist()
    left = (dist.get_rank() - 1) % dist.get_world_size()
    armed.strikes(f"receives from rank {left} before it sends, before {named(armed, call)}")
    dist.recv(numbers(), src=left)


def _peer(armed: Armed, call: Call) -> None:
    dist = _dist()
    word = _root_name(call)
    before, size, mine = call.get(word), dist.get_world_size(), dist.get_rank()
    after = next((r % size for r in range(before + 1, before + size) if r % size != mine), None)
    if after is not None:
        armed.strikes(f"makes {named(armed, call)} with {word}={after} instead of {before}")
        call.put(**{word: after})


_ORDER_FAMILY = "order"
_EXPLICIT = "explicit collective call"
OF_ORDER = (
    Fault("two_threads_one_group", _ORDER_FAMILY, "a second thread's collective comes first",
          (RANK, STEP, CALL, OP, seconds(0.5, "how much later it comes on the others, in seconds")),
          ("collective-order-race",), "collective-order-race", True, _EXPLICIT,
          _race),
    Fault("p2p_cycle", _ORDER_FAMILY, "every rank receives before anyone sends", (rank_of("all"), STEP, CALL, OP),
          ("collective-order-race",), "collective-order-race", True, _EXPLICIT,
          _at_call(_cycle)),
    Fault("p2p_wrong_peer", _ORDER_FAMILY, "sends to, or receives from, another rank", (RANK, CALL), ("wrong-peer",),
          "code-divergence", True, "send or receive between more than two ranks",
          once_at(program.calls, _peer, lambda _, call: call.name in TRANSFERS and bool(_root_name(call)))),
)  # fmt: skip


def _corrupt(armed: Armed, call: Call) -> None:
    armed.strikes(f"gets a wrong result from {named(armed, call)}")

    def spoil(result: Any) -> Any:
        if call.get("async_op"):
            result.wait()
        with _torch().no_grad():
            call.get("tensor").detach().reshape(-1)[0].add_(armed.value("error"))
        return result

    call.change_result = spoil


def _can_corrupt(call: Call) -> bool:
    tensor = call.get("tensor") if call.name in ("all_reduce", "broadcast") else None
    return tensor is not None and tensor.is_contiguous() and tensor.numel() > 0


def _flip(armed: Armed, optimizer: Any) -> None:
    armed.strikes("has a weight that is not what the optimizer made of it")
    with _torch().no_grad():
        optimizer.param_groups[0]["params"][0].view(-1)[0].add_(armed.value("error"))


def _drop_gradients(armed: Armed, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


_NOT_LEARNING = "has no gradients from now on: the optimizer changes nothing"


_RESULT_FAMILY = "results"
_ERROR = Parameter("error", "what is added to one number", 1.0, -1e6, 1e6, is_whole=False)
OF_RESULTS = (
    Fault("wrong_result", _RESULT_FAMILY, "a collective gives one rank another number", (RANK, STEP, CALL, OP, _ERROR),
          ("silent-desync",), "", False, "explicit all_reduce or broadcast",
          _at_call(_corrupt, _can_corrupt)),
    Fault("wrong_weight", _RESULT_FAMILY, "one weight of one rank changes", (RANK, STEP, _ERROR), ("silent-desync",), "", False,
          "optimizer step", once_at(program.stepped, _flip)),
    Fault("not_learning", _RESULT_FAMILY, "the optimizer gets no gradients any more", (rank_of("all"), STEP), ("not-learning",),
          "", False, "optimizer step", from_now_on(program.at_step, lambda *_: _NOT_LEARNING, _drop_gradients)),
)  # fmt: skip


_LOADER = "torch.utils.data.DataLoader"
Fetch = Callable[[], Any]


def _at_fetch(act: Callable[[Armed, Fetch], Any]) -> Ready:
    """Calls `act` in the place of the fetch of the batch whose turn it is."""

    def make_ready(armed: Armed) -> None:
        def wrap(fetch: Fetch) -> Fetch:
            return (lambda: act(armed, fetch)) if not program.is_helper and armed.is_due else fetch

        program.batches.append(wrap)

    return make_ready


def _exhausted(armed: Armed, _fetch: Fetch) -> Any:
    armed.strikes(f"gets no batch {armed.visits}: its loader ends here")
    raise StopIteration


def _late(armed: Armed, fetch: Fetch) -> Any:
    armed.strikes(f"waits for batch {armed.visits} for {armed.value('seconds'):g} s")
    armed.stay()
    return fetch()


def _not_a_number(armed: Armed, fetch: Fetch) -> Any:
    batch = fetch()
    armed.strikes(f"gets batch {armed.visits} with values that are no numbers")
    _spoil(batch)
    return batch


def _spoil(value: Any) -> bool:
    """Overwrites the first tensor of real numbers in a batch."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            value.fill_(float("nan"))
        return bool(value.is_floating_point())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(_spoil(part) for part in parts)


def _slow(armed: Armed) -> None:
    def wrap(fetch: Fetch) -> Fetch:
        if program.is_helper:
            return fetch
        if not armed.has_struck and armed.is_due:
            armed.strikes(f"waits {armed.value('delay'):g} s longer for every batch")
        if armed.has_struck:
            time.sleep(armed.value("delay"))
        return fetch

    program.batches.append(wrap)


_DELAY = Parameter("delay", "seconds by which each batch is late", 0.3, 0.001, 3600, is_whole=False)
_FIRST = Parameter("batch", "the batch of the rank, from 1, that is struck", 1, 1, 10**9)
OF_LOADERS = (
    Fault("data_exhausted", DATA_FAMILY, "the loader of one rank ends early", (RANK, BATCH),
          ("uneven-inputs",), "uneven-inputs", True, _LOADER, _at_fetch(_exhausted)),
    Fault("slow_loader", DATA_FAMILY, "every batch of one rank comes late", (RANK, BATCH, _DELAY),
          ("straggler",), "straggler", False, _LOADER, _slow),
    Fault("slow_first_batch", DATA_FAMILY, "the first batch takes minutes", (RANK, _FIRST, seconds(600)),
          ("dataloader-hang",), "dataloader-hang", True, _LOADER, _at_fetch(_late)),
    Fault("stuck_loader", DATA_FAMILY, "a batch never comes", (RANK, BATCH, seconds(EVER_S)),
          ("dataloader-hang",), "dataloader-hang", True, _LOADER, _at_fetch(_late)),
)  # fmt: skip
OF_BATCHES = (
    Fault("nan_batch", DATA_FAMILY, "a batch is NaN; a program that skips such a loss leaves its peers", (RANK, BATCH),
          ("skipped-step", "rank-dependent-collective", "call-left-out"), "code-divergence", True, _LOADER,
          _at_fetch(_not_a_number)),
)  # fmt: skip
