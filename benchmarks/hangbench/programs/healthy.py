"""Healthy trainings that look like sick ones: what differs between the ranks is meant, and everyone knows of it.

    torchrun --standalone --nproc-per-node 4 healthy.py KIND

Trains a small network with DistributedDataParallel; each KIND puts its own oddity between the steps.
"""

import argparse
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KINDS = {
    "subgroup": "two of four ranks agree on something in a group of their own, in every step",
    "joined": "rank 3 has fewer batches, and DDP's join shadows what it misses",
    "agreed": "the ranks' data differ in length, and they agree on the shortest before the loop",
    "rank0_evaluates": "rank 0 evaluates alone for three seconds, and the others wait at a barrier",
    "slow_rank": "rank 2 sleeps for three seconds in one step",
    "first_batch": "rank 1 needs three seconds for its first batch",
    "skipped_by_all": "rank 1 cannot use a batch; all ranks hear of it and leave the step out together",
    "rates": "one group makes ten calls where the other makes one",
    "thread": "a thread of every rank reduces a metric in a group of its own",
    "last_rank": "rank 3 has work to do after the last step, and the others wait",
}


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()


def agree(usable: bool) -> bool:
    """Whether all ranks can use their batch."""
    flag = torch.tensor([float(usable)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def reduce_in_background(group: dist.ProcessGroup, rounds: int) -> threading.Thread:
    def work() -> None:
        for _ in range(rounds):
            dist.all_reduce(torch.ones(3), group=group)
            time.sleep(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def oddity(kind: str, rank: int, step: int, pair: dist.ProcessGroup | None) -> None:
    """What a kind does between two steps."""
    if kind == "subgroup" and rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
    if kind == "rates" and step % 5 == 0:
        for _ in range(10 if rank < 2 else 1):
            dist.all_reduce(torch.ones(2), group=pair)
    if kind == "rank0_evaluates" and step == 10:
        time.sleep(3 if rank == 0 else 0)
        dist.barrier()
    if (kind, rank, step) in (("slow_rank", 2, 12), ("first_batch", 1, 0)):
        time.sleep(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, kind = dist.get_rank(), args.kind
    pairs = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    other = dist.new_group()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps = args.steps - (4 * rank if kind == "agreed" else 4 if kind == "joined" and rank == 3 else 0)
    if kind == "agreed":
        shortest = torch.tensor([steps])
        dist.all_reduce(shortest, op=dist.ReduceOp.MIN)
        steps = int(shortest)
    thread = reduce_in_background(other, 20) if kind == "thread" else None
    with model.join(enable=kind == "joined"):
        for step in range(steps):
            if kind == "skipped_by_all" and not agree(not (step == 7 and rank == 1)):
                continue
            oddity(kind, rank, step, pairs[rank // 2])
            train_step(model, optimizer)
    if kind == "last_rank":
        time.sleep(3 if rank == 3 else 0)
    if thread is not None:
        thread.join()
    dist.barrier()
    print(f"rank {rank} is done", flush=True)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
