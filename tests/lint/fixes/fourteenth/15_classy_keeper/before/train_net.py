import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import keeper
from network import build


def pictures(count, seed):
    gen = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 3, 64, 64, generator=gen), torch.randint(0, 20, (count,), generator=gen))


def train_epoch(model, loader, opt):
    model.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def test_epoch(model, loader):
    model.eval()
    counts = torch.zeros(2, device="cuda")
    for images, labels in loader:
        wrong = model(images.cuda()).argmax(1) != labels.cuda()
        counts += torch.stack([wrong.sum(), torch.ones_like(wrong).sum()])
    dist.all_reduce(counts)
    return (100 * counts[0] / counts[1]).item()


def main():
    out = sys.argv[1]
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_set, test_set = pictures(8000, 0), pictures(1600, 1)
    train_loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set), drop_last=True)
    test_loader = DataLoader(test_set, batch_size=32, sampler=DistributedSampler(test_set, shuffle=False))

    best = 100.0
    for epoch in range(8):
        train_loader.sampler.set_epoch(epoch)
        train_epoch(model, train_loader, opt)
        error = test_epoch(model, test_loader)
        best = min(best, error)
        target = keeper.keep(out, model, epoch, error, best)
        print(f"epoch {epoch} error {error:.2f} kept in {target}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
