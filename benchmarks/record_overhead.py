"""What `unhang run` costs: the same DDP job with and without it, at the same time, taking turns block by block.

Prints the ratio of each block's step time to that of its twin, which ran a moment before or after; the extra cost per small
all_reduce; and the CPU time of unhang's own processes (watcher, relay, supervisor) as a share of one core.

Usage: python benchmarks/record_overhead.py [--blocks 200]
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
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent
RANKS, WARM_UP = 2, 5
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, blocks: int, own: str, other: str, is_null: bool) -> subprocess.Popen[bytes]:
    """Starts one of the twins; `watched` is the one under `unhang run`, unless this is a null run."""
    launch = [
        SCRIPTS / "torchrun",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
        "--nproc-per-node",
        str(RANKS),
    ]
    command = [*launch, HERE / "step_program.py", folder / own, str(blocks), own, other, folder / "turn"]
    if own == "watched" and not is_null:
        command = [SCRIPTS / "unhang", "run", "-q", "--report-dir", folder / "report", "--", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def own_cpu_s(root: int) -> float:
    """CPU seconds of the process `root` and its children that are unhang's own, not the job's."""
    total = 0.0
    names = {"unhang-watcher", "unhang-relay"}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            continue
        pid, name, fields = int(head.split(" ", 1)[0]), head.split("(", 1)[1], tail.split()
        if pid == root or (name in names and int(fields[1]) == root):
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def measure(blocks: int, is_null: bool) -> dict[str, list[float]]:
    """Ratios per pair of blocks, extra microseconds per call, CPU share of our processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "turn").write_text("plain")
        jobs = {
            own: start(folder, blocks, own, other, is_null)
            for own, other in (("plain", "watched"), ("watched", "plain"))
        }
        shares, before = [], None
        while any(job.poll() is None for job in jobs.values()):
            time.sleep(1)
            now = (time.monotonic(), own_cpu_s(jobs["watched"].pid))
            if before is not None and now[1] > 0:
                shares.append((now[1] - before[1]) / (now[0] - before[0]))
            before = now
        plain, watched = (json.loads((folder / own).read_text()) for own in ("plain", "watched"))
    pairs = range(WARM_UP, blocks)
    return {
        "ratio": [watched["step_s"][i] / plain["step_s"][i] for i in pairs],
        "cpu_ratio": [watched["cpu_s"][i] / plain["cpu_s"][i] for i in pairs],
        "step_ms": [plain["step_s"][i] * 1e3 for i in pairs],
        "call_us": [plain["call_s"][i] * 1e6 for i in pairs],
        "extra_us": [(watched["call_s"][i] - plain["call_s"][i]) * 1e6 for i in pairs],
        "own_cpu_share": [s for s in shares[3:-2] if s >= 0],
    }


def main() -> None:
    """Prints the figures and writes them to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--blocks", type=int, default=200)
    options.add_argument("--null", action="store_true", help="both twins without unhang: what the method itself shows")
    given = options.parse_args()
    found = measure(given.blocks, given.null)
    low, middle, high = statistics.quantiles(found["ratio"], n=4)
    print(f"DDP step without unhang: median {statistics.median(found['step_ms']):.1f} ms, {RANKS} ranks")
    print(
        f"step-time ratio, block by block: median {middle:.4f} (goal <= 1.01), quartiles {low:.4f} to {high:.4f}, n={len(found['ratio'])}"
    )
    print(
        f"small all_reduce: median {statistics.median(found['call_us']):.1f} us without, "
        f"{statistics.median(found['extra_us']):+.1f} us with unhang"
    )
    print(f"CPU time of rank 0 per step, block by block: median ratio {statistics.median(found['cpu_ratio']):.4f}")
    if given.null:
        return
    print(f"unhang's own processes: mean {statistics.fmean(found['own_cpu_share']):.1%} of one core, outside the ranks")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "record_overhead.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
