"""Remedy: no broadcast of parameters when DDP is built (init_sync=False). The wait moves to the first backward; the models part."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranks import Result, import_for_ddp, run_ranks, seconds_of, tell


def train(is_synced: bool, is_same_seed: bool) -> float:
    """How far the parameters of the two ranks lie apart after training."""

    def be_rank(rank: int) -> Result:
        torch.manual_seed(0 if is_same_seed else rank)
        model = DistributedDataParallel(nn.Linear(4, 1), init_sync=is_synced)
        for _ in range(5):
            model.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        return {"parameters": [v for p in model.parameters() for v in p.flatten().tolist()]}

    first, second = (result["parameters"] for result in run_ranks(2, be_rank))
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def missing(is_synced: bool, timeout_s: float) -> str:
    """Where rank 0 fails while rank 1 never comes."""

    def be_rank(rank: int) -> Result:
        if rank == 1:
            time.sleep(timeout_s + 0.3)
            return {}
        where = "building DDP"
        try:
            model = DistributedDataParallel(nn.Linear(4, 1), init_sync=is_synced)
            where = "first backward"
            model(torch.ones(2, 4)).sum().backward()
            where = "nowhere"
        except RuntimeError:
            pass
        return {"failed_in": where}

    return str(run_ranks(2, be_rank, timeout_s)[0]["failed_in"])


def build(is_synced: bool, repeats: int) -> float:
    """Seconds to build DDP around 4 million parameters."""

    def be_rank(_: int) -> Result:
        model = nn.Linear(2000, 2000)
        DistributedDataParallel(model, init_sync=is_synced)
        return {"s": seconds_of(lambda: DistributedDataParallel(model, init_sync=is_synced), repeats)}

    return float(run_ranks(2, be_rank)[0]["s"])


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    import_for_ddp()
    timeout_s, repeats = (0.5, 1) if is_quick else (1.0, 5)
    return {
        "difference_with_broadcast_other_seeds": train(True, False),
        "difference_without_broadcast_other_seeds": train(False, False),
        "difference_without_broadcast_same_seed": train(False, True),
        "rank_never_comes_fails_in_with_broadcast": missing(True, timeout_s),
        "rank_never_comes_fails_in_without_broadcast": missing(False, timeout_s),
        "ms_to_build_with_broadcast_16_mb": 1e3 * build(True, repeats),
        "ms_to_build_without_broadcast_16_mb": 1e3 * build(False, repeats),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
