"""Remedy: barriers "to synchronise the ranks". A barrier is a collective more; it orders, and never brings a rank."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import Result, run_ranks, seconds_of, tell

STEPS, SKIPPED = 6, 3


def skipping(has_barriers: bool, timeout_s: float) -> list[Result]:
    """Rank 1 skips one batch; the others see it in the call where they wait."""

    def be_rank(rank: int) -> Result:
        where = "start"
        try:
            for step in range(STEPS):
                if rank == 1 and step == SKIPPED:
                    continue
                if has_barriers:
                    where = f"barrier of step {step}"
                    dist.barrier()
                where = f"all_reduce of step {step}"
                dist.all_reduce(torch.ones(1))
            where = "end"
            if rank == 1:
                time.sleep(timeout_s + 0.3)  # else the others see a closed connection instead of a wait
        except RuntimeError:
            return {"failed_in": where}
        return {"came_to": where}

    return run_ranks(2, be_rank, timeout_s)


def reading(has_barrier: bool) -> Result:
    """Rank 1 reads what rank 0 writes: here a barrier is the right thing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocabulary.txt")

        def be_rank(rank: int) -> Result:
            if rank == 0:
                time.sleep(0.3)
                path.write_text("words")
            if has_barrier:
                dist.barrier()
            return {"words": path.read_text()}

        return run_ranks(2, be_rank)[1]


def cost(repeats: int) -> float:
    """Seconds of a barrier."""

    def be_rank(_: int) -> Result:
        dist.barrier()
        return {"seconds": seconds_of(dist.barrier, repeats)}

    return float(run_ranks(2, be_rank)[0]["seconds"])


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    timeout_s = 0.5 if is_quick else 1.0
    without, with_them = skipping(False, timeout_s)[0], skipping(True, timeout_s)[0]
    return {
        "skipped_step": SKIPPED,
        "hangs_without_barriers": without.get("failed_in", "no"),
        "hangs_with_barriers": with_them.get("failed_in", "no"),
        "file_read_without_barrier": reading(False).get("error", "read").partition(":")[0],
        "file_read_with_barrier": "read" if "words" in reading(True) else "failed",
        "microseconds_per_barrier_2_ranks": 1e6 * cost(20 if is_quick else 300),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
