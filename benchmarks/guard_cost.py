"""What the guards cost per step, in real gloo jobs: microseconds of the thread that trains, guard by guard, beside the same loop without.

Each measure takes turns, block by block, between the loop with the guard and the bare one, in the same job; the step itself
is a wait of `--step-ms`, during which what runs in the background may run.

Usage: python benchmarks/guard_cost.py [--ranks 2] [--blocks 20] [--step-ms 5] [--only align ...]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent
STEPS = 50
MEASURES: dict[str, Callable[[int, float], dict[str, list[float]]]] = {}
"""A measure gets the number of blocks and the seconds of a step, and returns microseconds by name. Rank 0's are printed."""


def measure(
    function: Callable[[int, float], dict[str, list[float]]],
) -> Callable[[int, float], dict[str, list[float]]]:
    """Adds a measure, under the name of its function."""
    MEASURES[function.__name__] = function
    return function


def seconds_in_loader(loader: Iterable[object], step_s: float) -> list[float]:
    """Microseconds that each batch took, without the step."""
    spent, began = [], time.perf_counter()
    for _ in loader:
        spent.append((time.perf_counter() - began) * 1e6)
        time.sleep(step_s)
        began = time.perf_counter()
    return spent[1:]  # the first waits for all ranks


@measure
def align(blocks: int, step_s: float) -> dict[str, list[float]]:
    """The loader with `align`, and the bare one."""
    from unhang.guard.align import align as wrap

    found: dict[str, list[float]] = {"bare": [], "with align": []}
    loader = [0.0] * STEPS
    aligned = wrap(loader, name="train")
    for _ in range(blocks):
        found["bare"] += seconds_in_loader(loader, step_s)
        found["with align"] += seconds_in_loader(aligned, step_s)
    return found


@measure
def together(blocks: int, step_s: float) -> dict[str, list[float]]:
    """One question per step, beside the barrier that brings the ranks to the same moment before."""
    import torch.distributed as dist

    from unhang.guard.together import together as ask

    found: dict[str, list[float]] = {"all_reduce of one number": [], "together": []}
    import torch

    number = torch.zeros(1)
    ask(False)
    for _ in range(blocks * STEPS):
        time.sleep(step_s / 10)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(number)
        found["all_reduce of one number"].append((time.perf_counter() - began) * 1e6)
        dist.barrier()
        began = time.perf_counter()
        ask(False, name="skip")
        found["together"].append((time.perf_counter() - began) * 1e6)
    return found


@measure
def assert_same(blocks: int, step_s: float) -> dict[str, list[float]]:
    """One value, compared once; the ranks come at the same time."""
    import torch.distributed as dist

    from unhang.guard.same import assert_same as compare

    found: dict[str, list[float]] = {"assert_same": []}
    for _ in range(blocks):
        dist.barrier()
        began = time.perf_counter()
        compare("batch_size", 32)
        found["assert_same"].append((time.perf_counter() - began) * 1e6)
    return found


def be_rank(names: list[str], blocks: int, step_s: float) -> None:
    """One rank of the job; rank 0 prints JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = {}
    for name in names:
        dist.barrier()
        found[name] = MEASURES[name](blocks, step_s)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def run(ranks: int, names: list[str], blocks: int, step_s: float) -> dict[str, dict[str, list[float]]]:
    """Runs the job.

    Raises:
        RuntimeError: a rank failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--rank", "--blocks", str(blocks), "--step-ms", str(step_s * 1e3)]
    processes = [
        subprocess.Popen(
            [*command, "--only", *names],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"the ranks ended with {[process.returncode for process in processes]}")
    found: dict[str, dict[str, list[float]]] = json.loads(outputs[0])
    return found


def main() -> None:
    """Prints the figures and adds them to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--blocks", type=int, default=20)
    options.add_argument("--step-ms", type=float, default=5.0)
    options.add_argument("--only", nargs="+", choices=sorted(MEASURES), default=list(MEASURES))
    options.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.rank:
        be_rank(given.only, given.blocks, given.step_ms / 1e3)
        return
    found = run(given.ranks, given.only, given.blocks, given.step_ms / 1e3)
    path = HERE / "results" / "guard_cost.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    print(f"{given.ranks} ranks, a step of {given.step_ms:g} ms; microseconds, rank 0")
    for name, series in found.items():
        kept[name] = {"ranks": given.ranks, "step_ms": given.step_ms, "us": {}}
        for label, values in series.items():
            low, middle, high = statistics.quantiles(values, n=4)
            kept[name]["us"][label] = {"quartiles": [low, middle, high], "n": len(values)}
            print(f"{name:14}{label:28}median {middle:8.1f}   quartiles {low:8.1f} to {high:8.1f}   n={len(values)}")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
