"""Remedy: backward(retain_graph=False). That is the default; where True stood for a reason, the second backward fails."""

from __future__ import annotations

import torch

from ranks import Result, tell


def gradient(**options: bool) -> torch.Tensor:
    """The gradient of a small function."""
    x = torch.arange(8.0, requires_grad=True)
    x.sin().sum().backward(**options)
    return x.grad


def two_losses(is_first_retained: bool) -> str:
    """Two losses on one graph, as a GAN's generator has them."""
    x = torch.arange(8.0, requires_grad=True)
    shared = x.sin().square()
    try:
        shared.sum().backward(retain_graph=is_first_retained)
        shared.mean().backward()
    except RuntimeError as error:
        return str(error).partition("(")[0].strip()
    return "trains"


def as_one_loss() -> bool:
    """The sum of both losses needs no retained graph."""
    x, y = (torch.arange(8.0, requires_grad=True) for _ in range(2))
    shared = x.sin().square()
    (shared.sum() + shared.mean()).backward()
    other = y.sin().square()
    other.sum().backward(retain_graph=True)
    other.mean().backward()
    return torch.allclose(x.grad, y.grad)


def measure(_: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    return {
        "same_gradient_as_default": torch.equal(gradient(), gradient(retain_graph=False)),
        "two_losses_retained": two_losses(True),
        "two_losses_not_retained": two_losses(False),
        "sum_of_losses_gives_the_same": as_one_loss(),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
