import contextlib

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import CIFAR10


@contextlib.contextmanager
def leader_first(local_rank):
    if local_rank > 0:
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


def pipeline(train):
    steps = [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)]
    if train:
        steps.insert(0, transforms.RandomHorizontalFlip())
    return transforms.Compose(steps)


def make_train_loader(args):
    with leader_first(args.local_rank):
        data = CIFAR10(args.data, train=True, transform=pipeline(True), download=True)
    sampler = DistributedSampler(data) if args.local_rank >= 0 else None
    return DataLoader(data, batch_size=args.batch, sampler=sampler, shuffle=sampler is None, num_workers=4)


def make_val_loader(args):
    with leader_first(args.local_rank):
        data = CIFAR10(args.data, train=False, transform=pipeline(False), download=True)
    return DataLoader(data, batch_size=args.test_batch, num_workers=4)
