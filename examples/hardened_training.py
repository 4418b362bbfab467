"""A DDP training on CPUs with all the guards, and for each of them a fault that it catches.

    torchrun --nproc-per-node 2 examples/hardened_training.py --fault NAME [--fault NAME ...]

    NAME      what goes wrong                        who catches it         what you see
    none      nothing                                                       heartbeat lines, exit code 0
    raise     rank 1 raises in its third step        process_group, record  all ranks stop within seconds, and name rank 1
    kill      rank 1 is killed (SIGKILL)             process_group          all ranks stop within seconds, and name rank 1
    stop      rank 1 is stopped (SIGSTOP)            process_group          all ranks stop within seconds, and name rank 1
    leave     rank 1 leaves early with sys.exit(0)   process_group          all ranks stop within seconds, and name rank 1
    config    rank 1 has another batch size          assert_same            all ranks raise, and say which rank has which
    uneven    rank 1 has two batches fewer           align                  all ranks raise before the step that would hang
    nan       rank 1 has a loss that is not finite   together               all ranks skip that step together, and go on
    memory    rank 1 runs out of memory in one step  together               all ranks skip that step together, and go on
    loader    rank 1's loader stands still           watch_loader           where its worker is, and that it goes on
    slow      rank 1 is late at the validation       section                who waits inside since when, and who has not entered
    stuck     rank 1 sleeps in the loop              heartbeat              at which step and line every rank is
    drift     rank 1 changes a weight by itself      check_replicas         the first tensor that differs, and since which step
    frozen    the learning rate is zero              check_learning         that it was zero in all of the first 20 steps
    sync      rank 1 does not take the new weights   WeightSync             rank 0 gives up after its limit, and names rank 1

Without the guards the ranks of `uneven` wait for each other until the timeout of the process group, those of `nan` and
`memory` too if rank 1 alone skips its step, and of `stop`, `leave` and `sync`; `config`, `drift` and `frozen` are silent; of
`loader`, `slow` and `stuck` nobody says who it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import unhang

FAULTS = ("none", "raise", "kill", "stop", "leave", "config", "uneven", "nan", "memory", "loader", "slow", "stuck",
          "drift", "frozen", "sync")  # fmt: skip
STEPS = 24
FAULTY_RANK = 1
LATE_S = 4.0


class Faults:
    """What `--fault` asks of this rank."""

    def __init__(self, names: list[str], rank: int) -> None:
        self.names, self.is_here = names, rank == FAULTY_RANK

    def has(self, name: str) -> bool:
        return name in self.names and self.is_here

    def end_rank(self) -> None:
        if self.has("raise"):
            raise ValueError("a broken sample")
        if self.has("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.has("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.has("leave"):
            sys.exit(0)

    def in_step(self, step: int, x: torch.Tensor, model: Any) -> torch.Tensor:
        if step == 2:
            self.end_rank()
        if step == 2 and self.has("nan"):
            return x * float("nan")
        if step == 3 and self.has("memory"):
            raise torch.OutOfMemoryError("the batch does not fit")
        if step == 5 and self.has("drift"):
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-3
        if step == 12 and self.has("stuck"):
            time.sleep(LATE_S)
        return x


class Samples(Dataset[torch.Tensor]):
    """Random vectors; one of them may take long to load."""

    def __init__(self, count: int, slow: int | None) -> None:
        self.x, self.slow = torch.randn(count, 16), slow

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.slow:
            time.sleep(LATE_S)
        return self.x[index]


def loss_of(model: Any, x: torch.Tensor, step: int, faults: Faults) -> torch.Tensor | None:
    """The loss; None where this rank has no memory for it. What one rank meets, all must decide together."""
    try:
        loss: torch.Tensor = model(faults.in_step(step, x, model)).square().mean()
    except torch.OutOfMemoryError as error:
        print(f"out of memory: {error}", flush=True)
        return None
    return loss if torch.isfinite(loss) else None


def validate(faults: Faults) -> None:
    """Every rank comes here; the late one lets the others wait inside the section."""
    if faults.has("slow"):
        time.sleep(LATE_S)
    with unhang.section("validation", limit_s=LATE_S / 4):
        dist.barrier()


def publish(model: Any, faults: Faults) -> None:
    """Rank 0 gives its weights to rank 1, as a learner does to a generator."""
    sync = unhang.WeightSync(learner=0, generators=[1], limit_s=LATE_S / 2)
    if faults.has("sync"):
        time.sleep(2 * LATE_S)
    if sync.is_learner:
        sync.publish(model.module)
        sync.close()
    while not sync.is_over:
        sync.take()
    print(f"weights of version {sync.version}", flush=True)


def train(faults: Faults, device: torch.device | None) -> int:
    torch.manual_seed(0)
    batch_size = 4 if faults.has("config") else 8
    unhang.assert_same("batch_size", batch_size)
    batches = STEPS - 2 if faults.has("uneven") else STEPS
    samples = Samples(batches * batch_size, slow=100 if faults.has("loader") else None)
    loader = DataLoader(samples, batch_size=batch_size, num_workers=1)
    model: Any = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if "frozen" in faults.names else 0.01)
    learning = unhang.check_learning(model, optimizer)
    steps = 0
    with (
        unhang.check_replicas(model, every=8, optimizer=optimizer) as replicas,
        unhang.heartbeat(every=10, limit=LATE_S / 2) as heart,
    ):
        for step, x in enumerate(unhang.align(unhang.watch_loader(loader, limit_s=LATE_S / 4))):
            loss = loss_of(model, x, step, faults)
            if unhang.together(loss is None, name="no loss") or loss is None:
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
    publish(model, faults)
    return steps


@unhang.record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, action="append", default=[], help="what shall go wrong")
    parser.add_argument("--list-faults", action="store_true", help="print them, and end")
    given = parser.parse_args()
    if given.list_faults:
        print((__doc__ or "").split("\n\n")[2])
        return
    with unhang.process_group("gloo", timeout="60s", config=vars(given), device="cpu") as job:
        steps = train(Faults(given.fault, job.rank), job.device)
        print(f"rank {job.rank}: {steps} steps", flush=True)


if __name__ == "__main__":
    main()
