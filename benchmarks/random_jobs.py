"""Draws small jobs with known truth at random, and counts how often the culprits are named exactly."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import dumpgen  # noqa: E402
from tests.dumps.test_random_jobs import diagnosed, what_is_wrong  # noqa: E402


def one(seed: int) -> tuple[int, str, str]:
    """(seed, kind of fault, what is wrong with our answer)."""
    job = dumpgen.random_job(seed)
    return seed, job.truth.kind, what_is_wrong(job, diagnosed(job))


def main() -> int:
    """Prints the wrong ones and a table; the exit code is 1 if there are any."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--jobs", type=int, default=50_000)
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    drawn: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    seeds = range(given.first, given.first + given.jobs)
    with get_context("spawn").Pool(given.processes) as pool:
        for seed, kind, why in pool.imap_unordered(one, seeds, chunksize=20):
            drawn[kind] += 1
            if why:
                wrong[kind] += 1
                print(f"seed {seed}: {kind}: {why}", flush=True)
            if drawn.total() % 1000 == 0:
                print(f"{drawn.total()} of {given.jobs}, {wrong.total()} wrong", file=sys.stderr, flush=True)
    for kind, count in sorted(drawn.items()):
        print(f"{kind:>16} {count:>7} drawn {wrong[kind]:>5} wrong")
    print(
        f"{'all':>16} {drawn.total():>7} drawn {wrong.total():>5} wrong ({wrong.total() / max(1, drawn.total()):.3%})"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
