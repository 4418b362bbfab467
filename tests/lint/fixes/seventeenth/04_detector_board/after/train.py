import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from boards import RunBoards
from grid_data import GridBoxes

LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))
RANK = int(os.getenv("RANK", -1))


class TinyGrid(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        layers, c = [], 3
        for i in range(4):
            layers += [nn.Conv2d(c, width << i, 3, 2, 1, bias=False), nn.BatchNorm2d(width << i), nn.SiLU()]
            c = width << i
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(c, 5 + classes, 1)

    def forward(self, x):
        return self.head(self.body(x))


def grid_loss(pred, target):
    box = (pred[:, :4].sigmoid() - target[:, :4]).abs() * target[:, 4:5]
    obj = nn.functional.binary_cross_entropy_with_logits(pred[:, 4], target[:, 4])
    cls = nn.functional.binary_cross_entropy_with_logits(pred[:, 5:], target[:, 5:])
    return box.mean() * 5 + obj + cls


def train(opt):
    device = torch.device("cuda", max(LOCAL_RANK, 0))
    torch.cuda.set_device(device)
    boards = RunBoards(opt.save_dir) if RANK in (-1, 0) else None
    model = TinyGrid(opt.classes).to(device)
    if opt.sync_bn and RANK != -1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if RANK != -1:
        model = DDP(model, device_ids=[LOCAL_RANK])
    data = GridBoxes(opt.data, opt.imgsz, opt.classes)
    sampler = DistributedSampler(data) if RANK != -1 else None
    loader = DataLoader(data, opt.batch, sampler=sampler, shuffle=sampler is None, drop_last=True, num_workers=8)
    optimizer = torch.optim.SGD(model.parameters(), opt.lr, momentum=0.937, nesterov=True)
    scaler = torch.cuda.amp.GradScaler()

    for epoch in range(opt.epochs):
        model.train()
        if sampler:
            sampler.set_epoch(epoch)
        mean = 0.0
        for i, (imgs, targets) in enumerate(loader):
            ni = i + len(loader) * epoch
            imgs = imgs.to(device, non_blocking=True).float() / 255
            with torch.cuda.amp.autocast():
                loss = grid_loss(model(imgs), targets.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if RANK in (-1, 0):
                mean = (mean * i + loss.item()) / (i + 1)
                boards.on_train_batch_end(ni, model, imgs, opt.sync_bn)
        if RANK in (-1, 0):
            boards.on_epoch_end(epoch, {"train/loss": mean})
            torch.save(model.state_dict(), os.path.join(opt.save_dir, "last.pt"))
    if boards:
        boards.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="grid")
    parser.add_argument("--save-dir", default="runs/exp")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--imgsz", type=int, default=416)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--sync-bn", action="store_true")
    options = parser.parse_args()
    if RANK != -1:
        dist.init_process_group("nccl")
    train(options)
    if RANK != -1:
        dist.destroy_process_group()
