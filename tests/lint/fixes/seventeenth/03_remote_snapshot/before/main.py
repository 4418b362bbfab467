import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms

from snapshot import ObjectStore, SnapshotManager, local_rank


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--resume")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank())

    data = datasets.ImageFolder(args.data, transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()]))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=8, drop_last=True)

    model = DistributedDataParallel(models.resnet50().cuda(), device_ids=[local_rank()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    criterion = nn.CrossEntropyLoss()

    snapshots = SnapshotManager(ObjectStore(args.store))
    first = snapshots.restore(args.resume, model, optimizer, scheduler) if args.resume else 0

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = criterion(model(images.cuda()), labels.cuda())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        scheduler.step()
        snapshots.save(epoch, model, optimizer, scheduler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
