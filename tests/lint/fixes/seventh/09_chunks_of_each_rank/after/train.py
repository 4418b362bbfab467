import torch
from torch.nn.parallel import DistributedDataParallel

from pipe import ExperimentPipe


def train(model, joinids, read, optimizer):
    model = DistributedDataParallel(model)
    for batch in ExperimentPipe(joinids, 1000, 128):
        loss = model(read(batch)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
