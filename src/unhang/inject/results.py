"""Faults without a hang or an error: wrong results, and training that trains nothing."""

from __future__ import annotations

import sys
from typing import Any

from . import points
from .armed import Armed
from .collectives import named, strike_calls
from .fault import CALL, OP, RANK, STEP, Fault, Parameter, rank_of
from .points import Call


def _corrupt(armed: Armed, call: Call) -> None:
    armed.strikes(f"gets a wrong result from {named(armed, call)}")

    def spoil(result: Any) -> Any:
        if call.get("async_op"):
            result.wait()
        with sys.modules["torch"].no_grad():
            call.get("tensor").detach().reshape(-1)[0].add_(armed.value("error"))
        return result

    call.change_result = spoil


def _can_corrupt(call: Call) -> bool:
    tensor = call.get("tensor")
    return (
        call.name in ("all_reduce", "broadcast")
        and tensor is not None
        and tensor.is_contiguous()
        and tensor.numel() > 0
    )


def _flip(armed: Armed) -> None:
    def listen(optimizer: Any) -> None:
        if armed.is_due:
            armed.strikes("has a weight that is not what the optimizer made of it")
            with sys.modules["torch"].no_grad():
                optimizer.param_groups[0]["params"][0].view(-1)[0].add_(armed.value("error"))

    points.stepped.append(listen)


def _no_training(armed: Armed) -> None:
    def listen(optimizer: Any) -> None:
        if not armed.has_struck and armed.is_due:
            armed.strikes("has no gradients from now on: the optimizer changes nothing")
        if armed.has_struck:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    points.steps.append(listen)


_FAMILY = "results"
_ERROR = Parameter("error", "what is added to one number", 1.0, -1e6, 1e6, is_whole=False)
FAULTS = (
    Fault("wrong_result", _FAMILY, "a collective gives one rank another number", (RANK, STEP, CALL, OP, _ERROR),
          ("silent-desync",), "", False, "explicit all_reduce or broadcast",
          lambda armed: strike_calls(armed, _corrupt, _can_corrupt)),
    Fault("wrong_weight", _FAMILY, "one weight of one rank changes", (RANK, STEP, _ERROR), ("silent-desync",), "", False,
          "optimizer step", _flip),
    Fault("not_learning", _FAMILY, "the optimizer gets no gradients any more", (rank_of("all"), STEP), ("not-learning",),
          "", False, "optimizer step", _no_training),
)  # fmt: skip
