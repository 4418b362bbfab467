"""Whether a DDP module really averages its gradients: it does so only where its own forward leads to a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

# Steps in a row without a reduction, although forward passes asked for one.
FEW_STEPS = 3

Found = tuple[str, str, str]


def wrapped_modules(model: Any) -> list[tuple[str, Any]]:
    """The DDP modules in a model, and the model itself if it is one, by name."""
    return [
        (name, module) for name, module in model.named_modules() if type(module).__name__ == "DistributedDataParallel"
    ]


class Reductions:
    """Counts the forward passes through and around one DDP module, and the steps before which it reduced gradients.

    Source: DDP's own documentation: "This module doesn't work with torch.autograd.grad()". With `static_graph=True` one such
    call in the first iteration has it never reduce again, without an error.
    """

    def __init__(self, name: str, ddp: Any, safely: Callable[[Callable[[], None]], None]) -> None:
        """`safely` calls what a hook does, and lets nothing of it into the training."""
        self._name, self._ddp = name or type(ddp.module).__name__, ddp
        self._through = self._around = self._asked = self._asked_before = 0
        self._without = 0
        self._last: list[int] | None = self._times()
        self._is_inside = False
        self._safely = safely
        self._hooks: list[Any] = []
        self.look(True)

    def look(self, is_wanted: bool) -> None:
        """Begins to look, or ends it: a module without hooks is called on a shorter way."""
        if is_wanted and not self._hooks:
            ddp, safely = self._ddp, self._safely
            self._without, self._last, self._asked_before = 0, self._times(), self._asked
            self._is_inside = False
            self._hooks = [
                ddp.register_forward_pre_hook(lambda *_: safely(self._enters)),
                ddp.register_forward_hook(lambda *_: safely(self._leaves), always_call=True),
                ddp.module.register_forward_pre_hook(lambda *_: safely(self._enters_inner)),
            ]
        elif not is_wanted and self._hooks:
            self.close()

    def _is_training(self) -> bool:
        """Not where the parameters are frozen: a GAN's generator is trained through a discriminator that stays as it is."""
        import torch

        inner = self._ddp.module
        return torch.is_grad_enabled() and inner.training and any(p.requires_grad for p in inner.parameters())

    def _enters(self) -> None:
        self._is_inside = True
        if self._is_training():
            self._through += 1
            self._asked += bool(getattr(self._ddp, "require_backward_grad_sync", True))

    def _leaves(self) -> None:
        self._is_inside = False

    def _enters_inner(self) -> None:
        if not self._is_inside and self._is_training():
            self._around += 1

    def _times(self) -> list[int] | None:
        """When each gradient was ready in the last backward pass that the reducer saw; None where it cannot be asked."""
        ddp = self._ddp
        if getattr(ddp, "_use_python_reducer", False) or getattr(ddp, "_delay_all_reduce_all_params", False):
            return None
        with suppress(Exception):
            return list(ddp.reducer.get_backward_stats())
        return None

    def before_step(self) -> None:
        """An optimizer step begins; some microseconds."""
        if not self._hooks:
            return
        times = self._times()
        if times is None or times != self._last:
            self._without = 0
        elif self._asked > self._asked_before:
            self._without += 1
        self._last, self._asked_before = times, self._asked

    def judge(self, steps: int) -> Iterator[Found]:
        """What is wrong, after so many optimizer steps: a name for it, what was seen, and what to do."""
        if not steps:
            return
        who = f"DDP module {self._name}"
        if not self._through and self._around:
            text = f"the training goes around {who}: {self._around} forward passes went to its inner module, none through it"
            yield "goes around DDP", text, "call the wrapped model, not model.module; the ranks train apart"
        elif self._through and not self._asked:
            text = f"{who} never reduces gradients: each of {self._through} forward passes was inside no_sync()"
            yield "always in no_sync", text, "leave no_sync() for the last backward pass before each step"
        elif self._without >= FEW_STEPS:
            graph = ", with static_graph=True" if getattr(self._ddp, "static_graph", False) else ""
            text = f"{who} has not reduced its gradients before the last {self._without} steps{graph}"
            advice = "torch.autograd.grad() through a DDP module has this effect: call model.module there; the ranks train apart"
            yield "gradients are not reduced", text, advice

    def close(self) -> None:
        """Takes back the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
