"""Faults of the calls that a program makes: left out, added, swapped, or made with other arguments on one rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import points, rank
from .armed import Armed
from .fault import CALL, OP, RANK, STEP, Fault
from .points import COLLECTIVES, Call

_CALLS = "explicit collective call (those inside DDP are made by C++ and cannot be reached)"
_CALLED = (RANK, STEP, CALL, OP)
_DIVERGED = ("rank-dependent-collective", "stacks-disagree")


def is_wanted(armed: Armed, call: Call) -> bool:
    """Whether a call is of the functions that the fault counts."""
    op = armed.value("op") or "any"
    return call.name in COLLECTIVES if op == "any" else call.name == op


def strike_calls(
    armed: Armed, act: Callable[[Armed, Call], None], can: Callable[[Call], bool] = lambda call: True
) -> None:
    """Hands the call whose turn it is, among those that the fault can strike, to `act`."""

    def listen(call: Call) -> None:
        if is_wanted(armed, call) and can(call) and armed.is_due:
            act(armed, call)

    points.calls.append(listen)


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

    points.calls.append(listen)


def _make_unlike(act: Callable[[Armed, Call], None]) -> Callable[[Armed], None]:
    """Strikes reductions unless told otherwise: some backends let a receiver of a broadcast get less than it expects."""

    def make(armed: Armed) -> None:
        kinds = ("all_reduce", "reduce") if armed.value("op") == "any" else (armed.value("op"),)
        strike_calls(armed, act, lambda call: call.name in kinds and call.get("tensor") is not None)

    return make


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


def _group(armed: Armed, call: Call) -> None:
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
        rank.at_line(rank.program_line(), _raise)
    except ValueError as error:
        print(f"ignored: {error}", file=sys.stderr, flush=True)


def _no_wait(armed: Armed, call: Call) -> None:
    armed.strikes(f"does not wait for {named(armed, call)}")
    kept: list[Any] = []

    def hide(work: Any) -> points.Done:
        kept.append(work)
        done = points.Done()
        done.work = work  # type: ignore[attr-defined]
        return done

    call.change_result = hide


def _no_group(armed: Armed, call: Call) -> None:
    armed.strikes("does not take part in new_group")
    call.is_skipped = True


def _make_no_group(armed: Armed) -> None:
    def listen(call: Call) -> None:
        if call.name == "new_group" and armed.is_due:
            _no_group(armed, call)

    points.calls.append(listen)


def _made(act: Callable[[Armed, Call], None], can: Callable[[Call], bool] = lambda call: True) -> Any:
    return lambda armed: strike_calls(armed, act, can)


_FAMILY = "collectives"
FAULTS = (
    Fault("skip_collective", _FAMILY, "leaves a collective out", _CALLED, (*_DIVERGED, "skipped-step"),
          "code-divergence", True, _CALLS, _made(_skip)),
    Fault("extra_collective", _FAMILY, "makes an all_reduce too many", _CALLED, _DIVERGED,
          "code-divergence", True, _CALLS, _made(_extra)),
    Fault("reorder_collective", _FAMILY, "swaps a collective with the next one", _CALLED,
          _DIVERGED, "code-divergence", True, _CALLS, _reorder),
    Fault("wrong_shape", _FAMILY, "gives a tensor one element too many", _CALLED, ("size-mismatch", "gloo-sizes"),
          "size-mismatch", False, _CALLS, _make_unlike(_shape)),
    Fault("wrong_dtype", _FAMILY, "gives a tensor of another type", _CALLED, ("size-mismatch", "gloo-sizes"),
          "size-mismatch", False, _CALLS, _make_unlike(_dtype)),
    Fault("wrong_group", _FAMILY, "uses another group of the program", _CALLED, ("collective-order-race", *_DIVERGED),
          "collective-order-race", True, "second group, whose members make explicit collective calls",
          _made(_group, lambda call: _other_group(call) is not None)),
    Fault("wrong_root", _FAMILY, "broadcasts from, or reduces to, another rank", _CALLED,
          (*_DIVERGED, "roots-disagree"),
          "code-divergence", True, "explicit collective with a root", _made(_root, lambda call: bool(_root_name(call)))),
    Fault("wrong_reduce_op", _FAMILY, "takes the maximum instead of the sum", _CALLED, ("silent-desync",),
          "", False, "explicit reduction", _made(_reduce_op, lambda call: call.get("op") is not None)),
    Fault("missing_wait", _FAMILY, "does not wait for an asynchronous call", _CALLED, ("silent-desync",),
          "", False, "asynchronous collective", _made(_no_wait, lambda call: bool(call.get("async_op")))),
    Fault("swallowed_exception", _FAMILY, "raises, prints and forgets in the place of a collective", _CALLED,
          ("swallowed-exception",), "code-divergence", True, _CALLS, _made(_swallow)),
    Fault("subgroup_not_created_by_all", _FAMILY, "leaves new_group out", (RANK, CALL),
          ("subgroup-not-created-by-all",), "code-divergence", True, "call of new_group", _make_no_group),
)  # fmt: skip
