import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from head import PointHead


class Detector(nn.Module):
    def __init__(self, classes=10, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 7, 4, 3), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.head = PointHead(classes, width)

    def forward(self, images, labels, targets):
        return self.head.loss(self.head(self.body(images)), labels, targets)


def scenes(count=2048, classes=10):
    labels = torch.full((count, 256), classes)
    busy = torch.rand(count) < 0.3
    labels[busy, :8] = torch.randint(0, classes, (int(busy.sum()), 8))
    return TensorDataset(torch.randn(count, 3, 128, 128), labels, torch.rand(count, 256, 4) + 0.1)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    net = DDP(Detector().to(local), device_ids=[local])
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    data = scenes()
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), drop_last=True)
    for epoch in range(12):
        loader.sampler.set_epoch(epoch)
        for images, labels, targets in loader:
            loss = net(images.to(local), labels.to(local), targets.to(local))
            opt.zero_grad()
            loss.backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
