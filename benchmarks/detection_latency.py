"""How long after its onset a hang is reported, beside the time at which torch alone would have spoken.

Runs the hanging jobs of tests/ranks under `unhang run`, each REPEAT times, and prints one line per fault. The onset is the
creation of the oldest call that waits; the verdict is the moment at which the watcher declares the hang; `shown` adds the
time until the report was on the screen, measured here from outside.

Usage: python benchmarks/detection_latency.py [--repeat 3] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.ranks.faults import HANGS, STORIES
from tests.ranks.harness import run_job
from tests.slowness import VARIABLE

TORCH_ALONE_S = {"gloo": 1800, "nccl": 600}


def measure(case: object, repeat: int) -> dict[str, list[float]]:
    """Latencies in seconds by kind of hang."""
    found: dict[str, list[float]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            job = run_job(case, Path(folder))
            hang = job.report["hang"]
            if hang is not None:
                found.setdefault(hang["kind"], []).append(hang["detected_after_s"])
    return found


def main() -> None:
    """Prints the table and writes it to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--only", default="")
    given = options.parse_args()
    os.environ[VARIABLE] = "1"  # the tests' own patience on a slow machine is not what is measured
    cases = [c for c in (*HANGS, *STORIES) if c.outcome == "hang" and given.only in c.name]
    rows, proven, late = [], [], []
    print(f"{'fault':34} {'kind':10} {'median s':>9} {'worst s':>8} {'limit s':>8}   torch alone (gloo / nccl)")
    for case in cases:
        for kind, seconds in measure(case, given.repeat).items():
            limit = "" if kind == "proven" else f"{case.stall_after_s + 2:.0f}"
            print(
                f"{case.name:34} {kind:10} {statistics.median(seconds):9.2f} {max(seconds):8.2f} {limit:>8}   "
                f"{TORCH_ALONE_S['gloo']} s / {TORCH_ALONE_S['nccl']} s",
                flush=True,
            )
            rows.append({"fault": case.name, "kind": kind, "seconds": seconds, "stall_after_s": case.stall_after_s})
            (proven if kind == "proven" else late).extend(
                seconds if kind == "proven" else [s - case.stall_after_s for s in seconds]
            )
    if proven:
        print(
            f"\nproven: n={len(proven)} median {statistics.median(proven):.2f} s, worst {max(proven):.2f} s (goal 3 / 6)"
        )
    if late:
        print(
            f"suspected, beyond --stall-after: n={len(late)} median {statistics.median(late):.2f} s, worst {max(late):.2f} s (goal 2)"
        )
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "detection_latency.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
