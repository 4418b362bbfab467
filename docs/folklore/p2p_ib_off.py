"""Remedy: NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1. They choose NCCL's ways between devices; no way helps where a rank never comes."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ranks import Result, run_ranks, tell, variables

NAMES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def outcome(is_set: bool, comes: bool, timeout_s: float) -> Result:
    """An all_reduce of two ranks, of which one may never come."""

    def be_rank(rank: int) -> Result:
        if rank == 1 and not comes:
            time.sleep(timeout_s + 0.3)
            return {}
        numbers = torch.arange(1000, dtype=torch.float64) * (rank + 1)
        dist.all_reduce(numbers)
        return {"sum": numbers.sum().item()}

    with variables(NAMES, is_set):
        return run_ranks(2, be_rank, timeout_s)[0]


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    timeout_s = 0.5 if is_quick else 1.0
    return {
        "backend": "gloo",
        "rank_never_comes_fails_without": "error" in outcome(False, False, timeout_s),
        "rank_never_comes_fails_with": "error" in outcome(True, False, timeout_s),
        "same_sum_with_and_without": outcome(False, True, 10.0)["sum"] == outcome(True, True, 10.0)["sum"],
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
    print("  gloo reads neither; speed and faults of NCCL's own ways can be shown on several GPUs only")
