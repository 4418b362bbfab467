"""Remedy: DDP(find_unused_parameters=True). It mends parameters without a gradient, and nothing else, at a price in each step."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ranks import Result, import_for_ddp, run_ranks, seconds_of, tell


class TwoHeads(nn.Module):
    """The second head is used by some batches only."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(2))

    def forward(self, x: Tensor, head: int = 0) -> Tensor:
        """One pass."""
        return self.heads[head](self.body(x))


def unused(finds: bool) -> Result:
    """Only the first head is used."""

    def be_rank(_: int) -> Result:
        model = DistributedDataParallel(TwoHeads(), find_unused_parameters=finds)
        for _ in range(3):
            model(torch.ones(2, 16)).sum().backward()
        return {"trained": True}

    return run_ranks(2, be_rank)[0]


def uneven(finds: bool, timeout_s: float) -> Result:
    """Rank 1 has a batch less."""

    def be_rank(rank: int) -> Result:
        model = DistributedDataParallel(nn.Linear(16, 1), find_unused_parameters=finds)
        for _ in range(3 - rank):
            model(torch.ones(2, 16)).sum().backward()
        if rank == 1:
            time.sleep(timeout_s + 0.3)
        return {"trained": True}

    return run_ranks(2, be_rank, timeout_s)[0]


def cost(repeats: int) -> float:
    """How many times longer forward and backward take where every parameter is used, both ways in turn."""

    def be_rank(_: int) -> Result:
        models = [
            DistributedDataParallel(
                nn.Sequential(*(nn.Linear(16, 16) for _ in range(60))), find_unused_parameters=finds
            )
            for finds in (False, True)
        ]
        took: list[list[float]] = [[], []]
        for number in range(repeats + 3):
            for model, seconds in zip(models, took, strict=True):
                once = seconds_of(partial(lambda model: model(torch.ones(2, 16)).sum().backward(), model), 1)
                if number >= 3:
                    seconds.append(once)
        without, with_it = (sorted(seconds)[repeats // 2] for seconds in took)
        return {"ratio": with_it / without}

    return float(run_ranks(2, be_rank)[0]["ratio"])


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    import_for_ddp()
    timeout_s, repeats = (0.5, 5) if is_quick else (1.0, 200)
    return {
        "unused_head_without": unused(False).get("error", "trains")[:60],
        "unused_head_with": unused(True).get("error", "trains")[:60],
        "batch_less_on_rank_1_fails_without": "error" in uneven(False, timeout_s),
        "batch_less_on_rank_1_fails_with": "error" in uneven(True, timeout_s),
        "step_time_with_over_without_60_layers": cost(repeats),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
