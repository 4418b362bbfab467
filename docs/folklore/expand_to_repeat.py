"""Remedy: replace `expand` by `repeat`, because a view shared by all samples is said to corrupt gradients and to hang ranks."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn

from ranks import Result, import_for_ddp, run_ranks, tell

SEQUENCE, WIDTH, BATCH, STEPS = 512, 1024, 64, 10


def copies(way: str, x: Tensor, batch: int) -> Tensor:
    """The tensor for each sample of the batch."""
    return x.expand(batch, -1, -1) if way == "expand" else x.repeat(batch, 1, 1)


def alone(batch: int, repeats: int) -> dict[str, dict[str, object]]:
    """Memory, processor time and gradient in one process, both ways in turn."""
    found: dict[str, dict[str, object]] = {way: {"took": []} for way in ("expand", "repeat")}
    for _ in range(repeats):
        for way, values in found.items():
            x = torch.randn(1, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
            began = time.process_time()
            copies(way, x, batch).sin().sum().backward()
            values["took"].append(time.process_time() - began)
            values.update(grad=x.grad, bytes=copies(way, x, batch).untyped_storage().nbytes())
    return found


def train(way: str) -> list[Result]:
    """All parameters after some steps of data-parallel training, of each rank."""

    def be_rank(rank: int) -> Result:
        torch.manual_seed(0)
        concepts = nn.Parameter(torch.randn(1, 4, 8))
        head = nn.Linear(8, 2)
        model = nn.parallel.DistributedDataParallel(Model(way, concepts, head))
        torch.manual_seed(1 + rank)
        for _ in range(STEPS):
            model.zero_grad()
            model(torch.randn(3, 5, 8)).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        return {"parameters": [v for p in model.parameters() for v in p.flatten().tolist()]}

    return run_ranks(2, be_rank)


class Model(nn.Module):
    """Attends from tokens to concepts that all samples share."""

    def __init__(self, way: str, concepts: nn.Parameter, head: nn.Module) -> None:
        super().__init__()
        self.way, self.concepts, self.head = way, concepts, head

    def forward(self, tokens: Tensor) -> Tensor:
        """One pass."""
        shared = copies(self.way, self.concepts, len(tokens))
        return self.head((tokens @ shared.transpose(1, 2)).softmax(-1) @ shared)


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    import_for_ddp()
    trained = {way: train(way) for way in ("expand", "repeat")}
    batch = 8 if is_quick else BATCH
    expand, repeat = alone(batch, 1 if is_quick else 3).values()
    return {
        "batch": batch,
        "ranks_that_came_to_the_end_with_expand": sum("parameters" in rank for rank in trained["expand"]),
        "parameters_bit_identical_after_training_on_2_ranks": trained["expand"] == trained["repeat"],
        "largest_difference_of_gradients": float((expand["grad"] - repeat["grad"]).abs().max()),
        "mb_expand": expand["bytes"] / 1e6,
        "mb_repeat": repeat["bytes"] / 1e6,
        "time_of_repeat_over_expand": median(repeat["took"]) / median(expand["took"]),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
