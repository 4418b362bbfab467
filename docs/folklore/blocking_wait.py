"""Remedy: TORCH_NCCL_BLOCKING_WAIT=1 (or NCCL_BLOCKING_WAIT). It is read by NCCL's process group alone; gloo's wait blocks anyway."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ranks import Result, run_ranks, tell, variables

NAMES = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


def outcome(is_set: bool, timeout_s: float) -> Result:
    """A rank waits for one that never comes."""

    def be_rank(rank: int) -> Result:
        if rank == 1:
            time.sleep(timeout_s + 0.3)
            return {}
        began = time.monotonic()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        issued_s = time.monotonic() - began
        try:
            work.wait()
        except RuntimeError:
            return {"failed": True, "issued_s": issued_s, "waited_s": time.monotonic() - began}
        return {"failed": False}

    with variables(NAMES, is_set):
        return run_ranks(2, be_rank, timeout_s)[0]


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    timeout_s = 0.5 if is_quick else 1.0
    without, with_it = outcome(False, timeout_s), outcome(True, timeout_s)
    return {
        "timeout_s": timeout_s,
        "hangs_without": without["failed"],
        "hangs_with": with_it["failed"],
        "told_after_s_without": without["waited_s"],
        "told_after_s_with": with_it["waited_s"],
        "seconds_to_issue_without": without["issued_s"],
        "seconds_to_issue_with": with_it["issued_s"],
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
    print("  what it does to NCCL needs two GPUs to show; by torch's source it replaces asynchronous error handling")
