"""A training with everything that a fault can strike: a loader, DDP, explicit collectives, transfers, files."""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def exchange(rank, world_size, border):
    """Around the ring: even ranks send first."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    got = torch.zeros_like(border)
    sent = dist.isend(border, dst=right)
    dist.recv(got, src=left)
    sent.wait()
    return got


def agree(rank, group, loss, setting):
    """What the ranks tell each other after a step."""
    dist.all_reduce(loss)
    dist.broadcast(setting, src=0)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, loss[:1], group=group)
    return loss.mean().item(), (loss.max() - loss.min()).item()


def write_metrics(rank, step, value):
    with open(f"metrics-{rank}.txt", "a") as file:
        print(step, value, file=file)


def save(rank, model):
    if rank == 0:
        torch.save(model.state_dict(), "checkpoint.pt")


def guarded(model):
    import unhang

    return unhang.check_replicas(model, every=1)


def main(workers=0, epochs=2, is_guarded=False, timeout_s=600):  # only the watcher ends a hung job
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    group = dist.new_group(list(range(world_size)))
    other = dist.new_group([0, 1])
    rows = TensorDataset(torch.randn(4 * 6 * world_size, 4))
    loader = DataLoader(rows, 4, sampler=DistributedSampler(rows), num_workers=workers)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    start_s, spread = time.time(), 0.0
    guard = guarded(model) if is_guarded else None
    for _ in range(epochs):
        for step, (inputs,) in enumerate(loader):
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            if torch.isfinite(loss):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            value, unlike = agree(rank, group, loss.detach().expand(4096).clone(), torch.tensor([0.5]))
            spread += unlike
            exchange(rank, world_size, torch.full((2,), float(rank)))
            write_metrics(rank, step, value)
        save(rank, model)
        dist.barrier()
    weights = sum(p.detach().sum().item() for p in model.parameters())
    said = {"rank": rank, "weights": weights, "spread": spread, "seconds": time.time() - start_s}
    sys.stdout.write(json.dumps(said) + "\n")  # in one piece: the ranks share the pipe
    sys.stdout.flush()
    if guard is not None:
        guard.close()
    del model, optimizer, group, other
    dist.destroy_process_group()


main(*map(int, sys.argv[1:]))
