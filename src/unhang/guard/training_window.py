"""What is seen of a model between two judgements: its gradients at a few steps, and its parameters at both ends."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from unhang.guard import checksums


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
