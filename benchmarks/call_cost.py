"""What one use of each guard costs the thread that trains, in microseconds, and what the import costs, in milliseconds.

Of `align` two figures: the wall time, and the CPU time of the thread, which other work on the machine hardly changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from twins import RANKS, free_port

STEPS, STEP_S = 50, 0.02
ROUNDS, USES = 60, 5000
Series = dict[str, list[float]]


def in_a_loop(once: Callable[[], object]) -> list[float]:
    """Per use, for each round, the cost of the loop included."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(USES):
            once()
        rounds.append((time.perf_counter() - began) / USES * 1e6)
    return rounds


def alone() -> Series:
    """What needs no other rank."""
    from unhang.inside.guards.heartbeat import heartbeat
    from unhang.inside.guards.loader import watch_loader
    from unhang.inside.guards.section import section

    beat = heartbeat(every=10**9)
    used, loader = section("step", limit_s=60), watch_loader(range(USES))

    def anew() -> None:
        with section("step", limit_s=60):
            pass

    def again() -> None:
        with used:
            pass

    def phase() -> None:
        with beat.phase("data"):
            pass

    def through() -> list[float]:
        rounds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in loader:
                pass
            rounds.append((time.perf_counter() - began) / USES * 1e6)
        return rounds

    found = {
        "heartbeat step": in_a_loop(beat.step),
        "heartbeat step with a number": in_a_loop(lambda: beat.step(loss=1.0)),
        "heartbeat phase": in_a_loop(phase),
        "section": in_a_loop(anew),
        "section made before": in_a_loop(again),
        "watch_loader item": through(),
    }
    beat.close()
    return found


def in_loader(loader: Iterable[object]) -> tuple[list[float], list[float]]:
    """Microseconds that each batch took without the step: wall time, and CPU time of this thread."""
    wall, cpu = [], []
    began, cpu_began = time.perf_counter(), time.thread_time()
    for _ in loader:
        cpu.append((time.thread_time() - cpu_began) * 1e6)
        wall.append((time.perf_counter() - began) * 1e6)
        time.sleep(STEP_S)
        began, cpu_began = time.perf_counter(), time.thread_time()
    return wall[1:], cpu[1:]  # the first waits for all ranks


def of_a_rank(blocks: int) -> Series:
    """What is exchanged between the ranks, on one of them."""
    import torch
    import torch.distributed as dist

    from unhang.inside.guards.agreement import assert_same, together
    from unhang.inside.guards.align import align

    found: Series = {
        "bare": [],
        "bare CPU": [],
        "align": [],
        "align CPU": [],
        "all_reduce": [],
        "together": [],
        "assert_same": [],
    }
    bare = [0.0] * STEPS
    aligned, number = align(bare, name="train"), torch.zeros(1)
    together(False)
    for _ in range(blocks):
        for name, loader in (("bare", bare), ("align", aligned)):
            wall, cpu = in_loader(loader)
            found[name] += wall
            found[f"{name} CPU"] += cpu
        for name, once in (
            ("all_reduce", lambda: dist.all_reduce(number)),
            ("together", lambda: together(False, name="skip")),
            ("assert_same", lambda: assert_same("batch_size", 32)),
        ):
            for _ in range(5):
                dist.barrier()
                began = time.perf_counter()
                once()
                found[name].append((time.perf_counter() - began) * 1e6)
    return found


def be_rank(blocks: int, is_apart: bool) -> None:
    """One rank of the job; rank 0 prints JSON. `is_apart`: as if each rank ran on a machine of its own."""
    import torch
    import torch.distributed as dist

    from unhang.inside.guards import exchange

    if is_apart:
        exchange.process_numbers = lambda: os.environ["RANK"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = of_a_rank(blocks)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def exchanged(blocks: int, is_apart: bool = False) -> Series:
    """Runs a job of two ranks.

    Raises:
        RuntimeError: a rank failed.
    """
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(blocks), *(["apart"] if is_apart else [])],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"the ranks ended with {[process.returncode for process in processes]}")
    found: Series = json.loads(outputs[0])
    return found


_IMPORT = """
import sys, time
{before}
began, cpu = time.perf_counter(), time.process_time()
import unhang
first = time.perf_counter() - began
for name in unhang.__all__:
    getattr(unhang, name)
print(first * 1e3, (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3)
"""


def imports(rounds: int) -> Series:
    """Milliseconds in fresh interpreters: `import unhang`, then all public names, and the CPU time of both."""
    found: Series = {}
    for _ in range(rounds):
        for label, before in (("after torch", "import torch, torch.distributed"), ("without torch", "")):
            done = subprocess.run(
                [sys.executable, "-c", _IMPORT.format(before=before)],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            for name, value in zip(("import unhang", "and all names", "CPU of both"), done.stdout.split(), strict=True):
                found.setdefault(f"{name}, {label}", []).append(float(value))
    return found


if __name__ == "__main__":
    be_rank(int(sys.argv[1]), sys.argv[2:] == ["apart"])
