from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


@torch.no_grad()
def write_guesses(rank, net, loader, folder):
    net.eval()
    for number, (hits, _) in enumerate(loader):
        guess = net(hits.to(rank))
        torch.save(guess.cpu(), folder / f"guess_{rank}_{number}.pt")


def run_probe(rank, world, net, sample, events, out, tag):
    if world > 1:
        sampler = DistributedSampler(events, shuffle=False)
    else:
        sampler = None
    loader = DataLoader(events, batch_size=64, sampler=sampler)
    folder = Path(out) / f"guesses{tag}" / sample
    folder.mkdir(parents=True, exist_ok=True)
    write_guesses(rank, net.module if world > 1 else net, loader, folder)
    if world > 1:
        dist.barrier()
    return folder
