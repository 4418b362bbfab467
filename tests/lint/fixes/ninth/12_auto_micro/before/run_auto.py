import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler

from auto_trainer import AutoTrainer
from images import Pictures
from resnet import ResNet


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    data = Pictures("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=256, sampler=sampler, num_workers=8, drop_last=True)
    net = ResNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    AutoTrainer(net, F.cross_entropy, optimizer, loader).fit(90)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
