import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from small_resnet import SmallResNet
from vision_data import make_train_loader, make_val_loader


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--local_rank", type=int, default=-1)
    p.add_argument("--data", default="data")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--test-batch", type=int, default=256)
    p.add_argument("--epochs", type=int, default=30)
    args = p.parse_args()
    if args.local_rank >= 0:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group("nccl", init_method="env://")
    args.is_main = args.local_rank in (-1, 0)
    return args


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x.cuda()).argmax(1) == y.cuda()).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def train_epoch(model, optimizer, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    args = parse()
    net = SmallResNet().cuda()
    model = DistributedDataParallel(net, device_ids=[args.local_rank]) if args.local_rank >= 0 else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_loader = make_train_loader(args)
    val_loader = make_val_loader(args) if args.is_main else None
    for epoch in range(args.epochs):
        if train_loader.sampler is not None and args.local_rank >= 0:
            train_loader.sampler.set_epoch(epoch)
        train_epoch(model, optimizer, train_loader)
        if args.is_main:
            print(epoch, evaluate(net, val_loader), flush=True)


if __name__ == "__main__":
    main()
