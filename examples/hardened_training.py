"""A DDP training on CPUs with all the guards, and for each of them a fault that it catches.

    torchrun --nproc-per-node 2 examples/hardened_training.py --fault NAME

    NAME      what goes wrong                        who catches it         what you see
    none      nothing                                                       heartbeat lines, exit code 0
    raise     rank 1 raises in its third step        process_group, record  all ranks stop within seconds, and name rank 1
    config    rank 1 has another batch size          assert_same            all ranks raise, and say which rank has which
    uneven    rank 1 has two batches fewer           align                  all ranks raise before the step that would hang
    nan       rank 1 has a loss that is not finite   together               all ranks skip that step together, and go on
    slow      rank 1 is late at the validation       section                who waits inside since when, and who has not entered
    stuck     rank 1 sleeps in the loop              heartbeat              at which step and line every rank is
    drift     rank 1 changes a weight by itself      check_replicas         the first tensor that differs, and since which step
    frozen    the learning rate is zero              check_learning         that it was zero in all of the first 20 steps

Without the guards the ranks of `uneven` wait for each other until the timeout of the process group, those of `nan` too if rank
1 alone skips its step; `config`, `drift` and `frozen` are silent; of `slow` and `stuck` nobody says who it is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import unhang

FAULTS = ("none", "raise", "config", "uneven", "nan", "slow", "stuck", "drift", "frozen")
STEPS = 24
FAULTY_RANK = 1
LATE_S = 4.0


class Faults:
    """What `--fault` asks of this rank."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.is_here = name, rank == FAULTY_RANK

    def has(self, name: str) -> bool:
        return self.name == name and self.is_here

    def in_step(self, step: int, x: torch.Tensor, model: Any) -> torch.Tensor:
        if step == 2 and self.has("raise"):
            raise ValueError("a broken sample")
        if step == 2 and self.has("nan"):
            return x * float("nan")
        if step == 5 and self.has("drift"):
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-3
        if step == 12 and self.has("stuck"):
            time.sleep(LATE_S)
        return x


def validate(faults: Faults) -> None:
    """Every rank comes here; the late one lets the others wait inside the section."""
    if faults.has("slow"):
        time.sleep(LATE_S)
    with unhang.section("validation", limit_s=LATE_S / 4):
        dist.barrier()


def train(faults: Faults, device: torch.device | None) -> int:
    torch.manual_seed(0)
    batch_size = 4 if faults.has("config") else 8
    unhang.assert_same("batch_size", batch_size)
    batches = STEPS - 2 if faults.has("uneven") else STEPS
    loader = unhang.align(DataLoader(TensorDataset(torch.randn(batches * batch_size, 16)), batch_size=batch_size))
    model: Any = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if faults.name == "frozen" else 0.01)
    learning = unhang.check_learning(model, optimizer)
    steps = 0
    with (
        unhang.check_replicas(model, every=8, optimizer=optimizer) as replicas,
        unhang.heartbeat(every=10, limit=LATE_S / 2) as heart,
    ):
        for step, (x,) in enumerate(loader):
            loss = model(faults.in_step(step, x, model)).square().mean()
            if unhang.together(not torch.isfinite(loss), name="loss is not finite"):
                print(f"step {step} is skipped on all ranks", flush=True)
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            heart.step(loss=round(loss.item(), 4))
        replicas.check_now()
    learning.close()
    validate(faults)
    return steps


@unhang.record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    given = parser.parse_args()
    with unhang.process_group("gloo", timeout="60s", config=vars(given), device="cpu") as job:
        steps = train(Faults(given.fault, job.rank), job.device)
        print(f"rank {job.rank}: {steps} steps", flush=True)


if __name__ == "__main__":
    main()
