"""Rank 1 gets a batch without images, so that a part of the model takes no part in its loss."""

import torch
import toy
from torch import nn

# Both lines are right: the call of the model that raises, and the branch that leaves the parameters out.


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, text, image):
        hidden = self.text(text)
        if image is not None:  # culprit
            hidden = hidden + self.image(image)
        return hidden.square().mean()


def main():
    rank = toy.begin()
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(6):
        inputs = toy.batch(rank)
        loss = model(inputs, None if rank == 1 and step == 3 else inputs)  # culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del model, optimizer
    toy.end()


main()
