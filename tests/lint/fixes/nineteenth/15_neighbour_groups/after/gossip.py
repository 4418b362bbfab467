import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

from topology import PairAveraging


def make_loader(root, batch_size):
    data = datasets.MNIST(root, train=True, transform=transforms.ToTensor())
    sampler = DistributedSampler(data, drop_last=True)
    return DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="data")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    averaging = PairAveraging(model)
    loader = make_loader(args.root, 64)

    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for image, label in loader:
            loss = nn.functional.cross_entropy(model(image.cuda()), label.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averaging.step()
        if dist.get_rank() == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
