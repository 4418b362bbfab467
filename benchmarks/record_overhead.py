"""What `unhang run` costs: paired runs of the same DDP job with and without it, alternating, in one session.

Prints the ratio of the median step times of each pair, the median of the ratios, and the cost per small all_reduce.

Usage: python benchmarks/record_overhead.py [--pairs 9] [--steps 200]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent
RANKS = 2


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_once(folder: Path, steps: int, watched: bool) -> dict[str, float]:
    """Median step and call time of one job."""
    out = folder / "times.json"
    launch = [
        SCRIPTS / "torchrun",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
        "--nproc-per-node",
        str(RANKS),
    ]
    command = [*launch, HERE / "step_program.py", out, str(steps)]
    if watched:
        command = [SCRIPTS / "unhang", "run", "-q", "--report-dir", folder / "report", "--", *command]
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=180,
    )
    return json.loads(out.read_text())


def main() -> None:
    """Prints the table and writes it to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=9)
    options.add_argument("--steps", type=int, default=200)
    given = options.parse_args()
    rows = []
    print(f"{'pair':>4} {'step ms':>9} {'watched':>9} {'ratio':>7}   {'call us':>8} {'watched':>8}")
    with tempfile.TemporaryDirectory() as name:
        for i in range(given.pairs):
            order = (False, True) if i % 2 == 0 else (True, False)
            runs = {watched: run_once(Path(name), given.steps, watched) for watched in order}
            plain, watched = runs[False], runs[True]
            ratio = watched["step_s"] / plain["step_s"]
            rows.append({"plain": plain, "watched": watched, "ratio": ratio})
            print(
                f"{i + 1:4} {plain['step_s'] * 1e3:9.2f} {watched['step_s'] * 1e3:9.2f} {ratio:7.4f}   "
                f"{plain['call_s'] * 1e6:8.1f} {watched['call_s'] * 1e6:8.1f}",
                flush=True,
            )
    ratios = [row["ratio"] for row in rows]
    extra = statistics.median(row["watched"]["call_s"] - row["plain"]["call_s"] for row in rows) * 1e6
    print(
        f"\nmedian step-time ratio {statistics.median(ratios):.4f} (goal <= 1.01), from {min(ratios):.4f} to {max(ratios):.4f}, n={len(ratios)}"
    )
    print(f"median extra cost per small all_reduce {extra:+.1f} us")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "record_overhead.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
