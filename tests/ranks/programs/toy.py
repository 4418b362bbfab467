"""What the small programs share: a model whose gradients are averaged by hand, and a clean start and end.

The mark is for the program that evaluates alone, and may be met in here.
"""

import datetime

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=600)  # only the watcher ends a hung program


def begin() -> int:
    """Joins the group of all ranks; returns the own rank."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    torch.manual_seed(0)
    return dist.get_rank()


def batch(rank: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rank))  # culprit


def train_step(weights: torch.Tensor, inputs: torch.Tensor) -> float:
    """One step of linear regression with the gradients averaged over all ranks; returns the own loss."""
    weights = weights.requires_grad_()
    loss = (inputs @ weights - inputs.sum(1, keepdim=True)).square().mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    dist.all_reduce(gradient)
    with torch.no_grad():
        weights -= 0.05 * gradient / dist.get_world_size()
    return loss.item()


def train(rank: int, steps: int = 5) -> torch.Tensor:
    """Trains without a fault."""
    weights = torch.zeros(4, 1)
    for _ in range(steps):
        train_step(weights, batch(rank))
    return weights


def end() -> None:
    dist.barrier()
    dist.destroy_process_group()
