"""The measured job: blocks of DDP steps of some 25 ms and of small all-reduces, taken in turns with its twin.

Two such jobs run at the same time, one of them under `unhang run`. Only one works at any moment: it passes the turn to the other
after each block, so that both meet the same machine, whatever else that is doing.

Usage: step_program.py OUT BLOCKS OWN_NAME OTHER_NAME TURN_FILE
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS, CALLS = 12, 100


def take_turn(turn: Path, own: str) -> None:
    """Waits, on rank 0, until it is our turn; the others wait in the barrier."""
    if dist.get_rank() == 0:
        while turn.read_text() != own:
            time.sleep(0.005)
    dist.barrier()


def pass_turn(turn: Path, other: str) -> None:
    """Lets the other job work."""
    dist.barrier()
    if dist.get_rank() == 0:
        unfinished = turn.with_suffix(f".{os.getpid()}")
        unfinished.write_text(other)
        unfinished.replace(turn)


def main() -> None:
    """Trains in turns, measures, writes."""
    torch.set_num_threads(1)
    out, blocks, own, other, turn = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.manual_seed(0)
    width = 512
    layers = (layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU()))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch, small = torch.randn(288, width), torch.ones(16)
    steps: list[float] = []
    calls: list[float] = []
    cpus: list[float] = []
    for _ in range(blocks):
        take_turn(turn, own)
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        steps.append((time.perf_counter() - start) / STEPS)
        cpus.append((time.process_time() - cpu) / STEPS)
        start = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(small)
        calls.append((time.perf_counter() - start) / CALLS)
        pass_turn(turn, other)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps({"step_s": steps, "call_s": calls, "cpu_s": cpus}))
    dist.barrier()
    del model
    dist.destroy_process_group()


main()
