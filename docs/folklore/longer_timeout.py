"""Remedy: raise the timeout of the process group. It decides when a hang is told, and never whether there is one."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ranks import Result, run_ranks, tell


def outcome(timeout_s: float, rank0_works_s: float, is_skipped: bool) -> Result:
    """What rank 0's peers see while it works alone, or never comes."""

    def be_rank(rank: int) -> Result:
        began = time.monotonic()
        if rank == 0:
            time.sleep(rank0_works_s)
        if rank != 0 or not is_skipped:
            dist.all_reduce(torch.ones(1))
        return {"seconds": time.monotonic() - began}

    return run_ranks(2, be_rank, timeout_s)[1]


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    short, long, work = (0.3, 3.0, 1.0) if is_quick else (0.5, 4.0, 1.0)
    never = {limit: outcome(limit, limit + 0.3, is_skipped=True) for limit in (short, long)}
    slow = {limit: outcome(limit, work, is_skipped=False) for limit in (short, long)}
    return {
        "short_timeout_s": short,
        "long_timeout_s": long,
        "rank_never_comes_short_fails": "error" in never[short],
        "rank_never_comes_long_fails": "error" in never[long],
        "rank_never_comes_told_after_s_short": never[short]["seconds"],
        "rank_never_comes_told_after_s_long": never[long]["seconds"],
        "rank0_works_s": work,
        "slow_rank0_short_fails": "error" in slow[short],
        "slow_rank0_long_fails": "error" in slow[long],
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
