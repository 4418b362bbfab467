"""What is seen of a model while it trains: gradients at a few steps, parameters at both ends of a window, and DDP's reductions.

A DDP module averages gradients only where its own forward leads to a backward pass.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from unhang.inside.guards import checksums

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


class Window:
    """Some steps of a training. Numbers of the device stay there until they are judged.

    first_step, first_attempt: where it begins. skipped: steps that a fused optimizer left out, as a number of the device.
    """

    def __init__(self, first_step: int = 0, first_attempt: int = 0) -> None:
        self.first_step, self.first_attempt = first_step, first_attempt
        self.skipped: Any = 0
        self.rates: set[float] = set()
        self._names: dict[int, str] = {}
        self._sums: dict[str, Any] = {}
        self._samples: list[dict[str, Any]] = []
        self._rated: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether the parameters at its beginning are known."""
        return bool(self._sums)

    @property
    def has_rate(self) -> bool:
        """Whether a learning rate was seen that is not 0."""
        return bool(self.rates) and self.rates != {0.0}

    def open(self, model: Any) -> None:
        """Takes the checksums of all trainable parameters."""
        self._names = {id(parameter): name for name, parameter in trainable(model)}
        self._sums = _sums(model)

    def see_rates(self, optimizers: Iterable[Any]) -> None:
        """Notes the learning rates."""
        self.rates.update(_rate(group) for optimizer in optimizers for group in optimizer.param_groups)

    def sample(self, optimizer: Any) -> None:
        """Takes the norms of the gradients that this optimizer is about to use; does not wait for the device."""
        norms: dict[str, Any] = {}
        own = 0
        for group in optimizer.param_groups:
            rate = _rate(group)
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                own += name is not None
                if name is not None and parameter.grad is not None:
                    norms[name] = _norm(parameter.grad)
                    if rate != 0:
                        self._rated.add(name)
        # An optimizer may work on copies of its own, and knows then nothing of the model's parameters.
        if own:
            self._samples.append(norms)

    def norms(self) -> list[dict[str, float]]:
        """Of each sample, by parameter. Blocks: for the device."""
        return [{name: float(norm) for name, norm in sample.items()} for sample in self._samples]

    def unchanged(self, model: Any) -> list[str]:
        """Parameters with the same bits as at the beginning. Blocks: for the device."""
        now = _sums(model)
        return [name for name, number in self._sums.items() if name in now and int(now[name]) == int(number)]

    def should_move(self) -> set[str]:
        """Parameters that had a gradient, neither zero nor infinite, and a learning rate. Blocks: for the device."""
        live = {n for sample in self.norms() for n, norm in sample.items() if norm > 0 and math.isfinite(norm)}
        return live & self._rated


def trainable(model: Any) -> list[tuple[str, Any]]:
    """The parameters that are to be trained, by name."""
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters() if p.requires_grad]


def _rate(group: dict[str, Any]) -> float:
    """The learning rate; NaN where it is none or lies on a GPU: to ask for it would be to wait for the GPU."""
    rate = group.get("lr")
    known = isinstance(rate, (int, float)) or getattr(getattr(rate, "device", None), "type", "") == "cpu"
    return float(rate) if known and rate is not None else math.nan


def _norm(gradient: Any) -> Any:
    torch: Any = sys.modules["torch"]
    values = gradient.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    values = values.coalesce().values() if values.is_sparse else values
    # A sum of squares of half precision is soon infinite.
    wide = torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(values, dtype=wide)


def _sums(model: Any) -> dict[str, Any]:
    named = [(name, p.to_local() if hasattr(p, "to_local") else p) for name, p in trainable(model)]
    sums = checksums.checksums([tensor for _, tensor in named])
    return dict(zip((name for name, _ in named), sums, strict=True))
