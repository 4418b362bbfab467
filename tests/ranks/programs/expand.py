"""`expand` on tensors whose length differs between ranks: often blamed, always harmless."""

import torch
import toy
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.head = nn.Parameter(torch.randn(32, 4)), nn.Linear(4, 1)

    def forward(self, rows, length):
        mixed = self.weights[:length].unsqueeze(0).expand(rows.shape[0], -1, -1)
        return self.head(mixed + rows.unsqueeze(1)).square().mean()


def main():
    rank = toy.begin()
    model = nn.parallel.DistributedDataParallel(Mixer())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(30):
        loss = model(toy.batch(rank), length=8 + (7 * step + 5 * rank) % 24)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del model, optimizer
    toy.end()


main()
