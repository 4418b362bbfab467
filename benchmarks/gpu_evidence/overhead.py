"""What `unhang run` costs a job on a GPU: DDP steps of some 20 ms and small all-reduces on NCCL, without and with it, in turns.

Two ranks share the device. For each start: the median of the steps, and the host's time for an all-reduce that is not waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu_evidence.ranks import free_port, inherited, transport

RESULTS = Path(__file__).parents[1] / "results" / "gpu_overhead.json"
STEPS, WARM, CALLS, RANKS = 250, 30, 2000, 2
LIMIT_S = 90.0


def train(out: Path) -> None:
    """One rank: measures, and writes the figures where it is rank 0."""
    os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    width = 1024
    layers = [torch.nn.Linear(width, width, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
    steps = []
    for _ in range(STEPS + WARM):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps.append(time.perf_counter() - began)
    small, calls = torch.ones(16, device="cuda"), []
    for _ in range(CALLS // 20):
        began = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(small, async_op=True)
        calls.append((time.perf_counter() - began) / 20)
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        found = {"step_ms": 1e3 * statistics.median(steps[WARM:]), "call_us": 1e6 * statistics.median(calls[10:])}
        out.write_text(json.dumps({**found, "cpu_s": time.process_time()}))
    dist.barrier()
    dist.destroy_process_group()


def started(is_watched: bool) -> dict[str, float]:
    """The figures of one start."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        out = Path(name) / "figures.json"
        job = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(RANKS),
            "--master-port",
            str(free_port()),
        ]
        job += [str(Path(__file__).resolve()), "--rank", str(out)]
        watch = (
            [sys.executable, "-m", "unhang", "run", "--report-dir", str(Path(name) / "report"), "--"]
            if is_watched
            else []
        )
        variables = {**inherited(), **transport()}
        done = subprocess.run([*watch, *job], env=variables, capture_output=True, text=True, timeout=LIMIT_S)
        if not out.exists():
            raise SystemExit(f"no figures: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(out.read_text())
        return found


def main() -> None:
    """Prints each start, and the ratio of the medians."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--results", type=Path, default=RESULTS)
    given = options.parse_args()
    if given.rank:
        train(given.rank)
        return
    figures: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for turn in range(2 * given.turns):
        kind = "with" if turn % 4 in (1, 2) else "without"
        figures[kind].append(started(kind == "with"))
        print(kind, {name: round(value, 3) for name, value in figures[kind][-1].items()}, flush=True)
    middle = {
        kind: {name: statistics.median(row[name] for row in rows) for name in rows[0]} for kind, rows in figures.items()
    }
    ratio = middle["with"]["step_ms"] / middle["without"]["step_ms"]
    more_us = middle["with"]["call_us"] - middle["without"]["call_us"]
    print(f"step: {middle['without']['step_ms']:.2f} ms, ratio {ratio:.4f}; a call: {more_us:+.1f} us")
    given.results.write_text(
        json.dumps({"median": middle, "ratio": ratio, "more_us": more_us, **figures}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
