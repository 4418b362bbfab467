"""The ranks have different numbers of batches, which DDP's join context makes harmless."""

import time

import torch
import toy
from torch import nn
from torch.distributed.algorithms.join import Join


def main():
    rank = toy.begin()
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with Join([model]):
        for _ in range(10 + 5 * rank):
            loss = model(toy.batch(rank)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)
    del model, optimizer
    toy.end()


main()
