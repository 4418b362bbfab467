import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from samplers import DistributedGroupBatchSampler


def train(model, dataset, batches, optimizer, epochs):
    model = DistributedDataParallel(model)
    sampler = DistributedGroupBatchSampler(batches, dist.get_world_size(), dist.get_rank())
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(epochs):
        sampler.epoch = epoch
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
