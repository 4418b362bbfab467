"""Rank 2 gets a loss that is not a number and skips the backward pass, which the other ranks wait for."""

import torch
import torch.distributed as dist
import toy
from torch import nn


def log(loss, step):
    losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss.detach().reshape(1))
    if dist.get_rank() == 0:
        print(f"step {step}: loss {sum(losses).item() / len(losses):.3f}", flush=True)


def main():
    rank = toy.begin()
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(8):
        inputs = toy.batch(rank)
        if rank == 2 and step == 5:
            inputs[3, 1] = float("nan")  # a broken record
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        if torch.isfinite(loss):  # culprit
            optimizer.zero_grad()
            loss.backward()  # culprit
            optimizer.step()
        log(loss, step)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


main()
