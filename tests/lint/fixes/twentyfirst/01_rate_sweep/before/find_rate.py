import argparse
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

from sweep import RateSweep


def build_loader(root, batch_size):
    tf = transforms.Compose([
        transforms.RandomResizedCrop(128),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ])
    data = datasets.ImageFolder(root, tf)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return DataLoader(data, batch_size, sampler=sampler, num_workers=4, drop_last=True)


def fit(model, loader, optimizer, hooks, epochs, device):
    state = SimpleNamespace(model=model, loader=loader, optimizer=optimizer, step=0,
                            loss=None, stop_epoch=False, stop_training=False)
    for hook in hooks:
        hook.before_fit(state)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            for hook in hooks:
                hook.before_batch(state)
            logits = model(images.to(device, non_blocking=True))
            state.loss = F.cross_entropy(logits, labels.to(device))
            optimizer.zero_grad()
            state.loss.backward()
            optimizer.step()
            for hook in hooks:
                hook.after_batch(state)
            state.step += 1
            if state.stop_epoch:
                break
        for hook in hooks:
            hook.after_epoch(state)
        if state.stop_training:
            break
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = DistributedDataParallel(models.resnet18(num_classes=10).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7, momentum=0.9)
    loader = build_loader(args.root, args.batch_size)

    sweep = RateSweep()
    fit(model, loader, optimizer, [sweep], epochs=1, device=device)
    rate = torch.tensor(sweep.suggestion(), device=device)
    dist.broadcast(rate, src=0)
    if dist.get_rank() == 0:
        print(f"suggested rate: {rate.item():.2e}")
    fit(model, loader, torch.optim.SGD(model.parameters(), lr=rate.item(), momentum=0.9), [], 5, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
