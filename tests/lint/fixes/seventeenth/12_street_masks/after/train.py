import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms
from torchvision.transforms.functional import pil_to_tensor

from segmentor import Segmentor


def to_mask(image):
    return pil_to_tensor(image.resize((1024, 512), 0))[0].long()


def build_loader(root, batch_size):
    view = transforms.Compose([transforms.Resize((512, 1024)), transforms.ToTensor()])
    data = datasets.Cityscapes(root, target_type="semantic", transform=view, target_transform=to_mask)
    sampler = DistributedSampler(data, drop_last=True)
    return DataLoader(data, batch_size, sampler=sampler, num_workers=4, drop_last=True), sampler


class RunLog:
    def __init__(self, interval):
        self.interval = interval
        self.rows = []

    def update(self, iteration, log_vars):
        self.rows.append(log_vars)
        if iteration % self.interval == 0 and dist.get_rank() == 0:
            keys = sorted({k for row in self.rows for k in row})
            parts = [f"{k}: {sum(r[k] for r in self.rows if k in r) / sum(k in r for r in self.rows):.4f}" for k in keys]
            print(f"iter {iteration}  " + ", ".join(parts))
            self.rows = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--iters", type=int, default=40000)
    parser.add_argument("--batch-size", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = DistributedDataParallel(Segmentor(34, rare_class=31).cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, args.iters, power=0.9)
    loader, sampler = build_loader(args.root, args.batch_size)
    log, iteration, epoch = RunLog(50), 0, 0
    while iteration < args.iters:
        sampler.set_epoch(epoch)
        for images, masks in loader:
            iteration += 1
            outputs = model(images.cuda(), masks.cuda())
            optimizer.zero_grad()
            outputs["loss"].backward()
            optimizer.step()
            schedule.step()
            log.update(iteration, outputs["log_vars"])
            if iteration >= args.iters:
                break
        epoch += 1
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "segmentor.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
