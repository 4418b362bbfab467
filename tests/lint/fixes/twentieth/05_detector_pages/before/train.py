"""Train a one-stage detector."""
import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from boxes import BoxSet, DetectionLoss
from pages import Pages

LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))
RANK = int(os.getenv("RANK", -1))


def conv(c_in, c_out, stride):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.SiLU())


class Detector(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(conv(3, 32, 2), conv(32, 64, 2), conv(64, 128, 2), conv(128, 256, 2))
        self.head = nn.Conv2d(256, 3 * (classes + 5), 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="coco128")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sync-bn", action="store_true")
    opt = parser.parse_args()

    if LOCAL_RANK != -1:
        torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl")
    device = torch.device("cuda", max(LOCAL_RANK, 0))

    model = Detector(opt.classes).to(device)
    if opt.sync_bn and RANK != -1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if RANK != -1:
        model = DistributedDataParallel(model, device_ids=[LOCAL_RANK])

    data = BoxSet(opt.data)
    sampler = DistributedSampler(data) if RANK != -1 else None
    loader = DataLoader(data, opt.batch, sampler=sampler, shuffle=sampler is None, collate_fn=data.collate, drop_last=True)
    loss_fn = DetectionLoss(opt.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, opt.epochs)
    pages = Pages(Path("runs") / opt.data) if RANK in (-1, 0) else None

    for epoch in range(opt.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        for i, (images, targets) in enumerate(loader):
            images = images.to(device, non_blocking=True).float() / 255
            loss = loss_fn(model(images), targets.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if pages is not None:
                pages.on_batch_end(epoch * len(loader) + i, model, images, loss.item())
        schedule.step()
        if pages is not None:
            pages.on_epoch_end(epoch, schedule.get_last_lr()[0])
            torch.save(model.state_dict(), f"runs/{opt.data}/last.pt")
    if RANK != -1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
