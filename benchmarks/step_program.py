"""The measured job: DDP steps of some 20 ms, in turns with its twin, and small all-reduces now and then.

Two such jobs run at the same time, and only one is at work: see twins.py. With `--guards` the job has what docs/guards.md
recommends, or those that are named, each as often as by default. With `--sleeps` the step waits for 20 ms instead of computing,
as a rank does whose device computes. What was measured is written after every 25 steps.

Usage: step_program.py OUT STEPS TURNS PER_TURN [--guards [NAME ...]] [--sleeps]
"""

import argparse
import json
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

CALLS_EVERY, CALLS = 25, 25
TURN = struct.Struct("=q")
STEP_S = 0.02
WIDTH, BATCH, SLEEPING_BATCH = 512, 240, 8
GUARDS = (
    "process_group",
    "assert_same",
    "align",
    "watch_loader",
    "check_learning",
    "check_replicas",
    "heartbeat",
    "section",
)


class Turns:
    """The turns of this rank, which the pipes TURNS.RANK.done and TURNS.RANK.go give."""

    def __init__(self, turns: Path) -> None:
        self._done = os.open(f"{turns}.{dist.get_rank()}.done", os.O_WRONLY)
        self._go = os.open(f"{turns}.{dist.get_rank()}.go", os.O_RDONLY)

    def give(self) -> None:
        """Says that the steps are done (at the beginning: that we are ready), and which process to keep still."""
        os.write(self._done, TURN.pack(os.getpid()))

    def take(self) -> None:
        """Waits for the next turn."""
        os.read(self._go, 1)


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """The same batch again and again."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.batch = count, torch.randn(size, WIDTH)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


@contextmanager
def bare_group() -> Iterator[None]:
    """Begins and ends the process group without us."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    try:
        yield
    finally:
        dist.destroy_process_group()


class Guards:
    """The guards that are wanted in a step."""

    def __init__(
        self, wanted: Sequence[str], stack: ExitStack, loader: Iterable[torch.Tensor], model: Any, optimizer: Any
    ) -> None:
        self.loader, self.heart, self.has_section = loader, None, "section" in wanted
        if not wanted:
            return
        import unhang

        self.unhang = unhang
        if "assert_same" in wanted:
            unhang.assert_same("batch_size", BATCH)
        if "watch_loader" in wanted:
            self.loader = unhang.watch_loader(self.loader)
        if "align" in wanted:
            self.loader = unhang.align(self.loader)
        if "check_learning" in wanted:
            unhang.check_learning(model, optimizer)
        if "check_replicas" in wanted:
            stack.enter_context(unhang.check_replicas(model, optimizer=optimizer))
        if "heartbeat" in wanted:
            self.heart = stack.enter_context(unhang.heartbeat())

    def step(self) -> AbstractContextManager[Any]:
        """What is around a step."""
        return self.unhang.section("step", limit_s=120) if self.has_section else nullcontext()

    def stepped(self) -> None:
        """A step has ended."""
        if self.heart is not None:
            self.heart.step()


def train(given: argparse.Namespace) -> None:
    """Writes of each step its seconds, and the CPU seconds of this rank with all its threads; and seconds per small all-reduce."""
    torch.manual_seed(0)
    layers = (layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers) if not given.sleeps else nn.Linear(WIDTH, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = Batches(given.steps, SLEEPING_BATCH if given.sleeps else BATCH)
    bare = torch.utils.data.DataLoader(batches, batch_size=None)
    small = torch.ones(16)
    found: dict[str, list[float]] = {"step_s": [], "cpu_s": [], "call_s": []}
    with ExitStack() as stack:
        guards = Guards(given.guards, stack, bare, model, optimizer)
        dist.barrier()
        turns = Turns(given.turns)
        turns.give()
        turns.take()
        began, cpu = time.perf_counter(), time.process_time()
        for number, batch in enumerate(guards.loader, 1):
            with guards.step():
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                if given.sleeps:
                    time.sleep(STEP_S)
            guards.stepped()
            found["step_s"].append(time.perf_counter() - began)
            found["cpu_s"].append(time.process_time() - cpu)
            if number % CALLS_EVERY == 0:
                found["call_s"].append(seconds_per_call(small))
                if dist.get_rank() == 0:
                    write(given.out, found)
            if number % given.per_turn == 0:
                turns.give()
                if number < given.steps:
                    turns.take()
            # Before the loader is asked for the next batch: that is the first thing in a step.
            began, cpu = time.perf_counter(), time.process_time()


def seconds_per_call(small: torch.Tensor) -> float:
    """What an all_reduce takes, on average."""
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(small)
    return (time.perf_counter() - began) / CALLS


def write(out: Path, found: dict[str, list[float]]) -> None:
    """In one piece: the reader may come at any moment."""
    unfinished = out.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(out)


def main() -> None:
    """Trains in turns, measures, writes."""
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("steps", type=int)
    options.add_argument("turns", type=Path)
    options.add_argument("per_turn", type=int)
    options.add_argument("--guards", nargs="*", choices=GUARDS, default=None, metavar="NAME")
    options.add_argument("--sleeps", action="store_true")
    given = options.parse_args()
    given.guards = [] if given.guards is None else given.guards or list(GUARDS)
    torch.set_num_threads(1)
    group: AbstractContextManager[Any] = bare_group()
    if "process_group" in given.guards:
        import unhang

        group = unhang.process_group("gloo", timeout="2m", config={"width": WIDTH})
    with group:
        train(given)
        dist.barrier()


if __name__ == "__main__":
    main()
