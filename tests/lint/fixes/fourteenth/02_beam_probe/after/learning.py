import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from plots import make_plots
from probe import run_probe


def one_epoch(rank, net, opt, loader):
    net.train()
    total = 0.0
    for hits, truth in loader:
        opt.zero_grad()
        loss = (net(hits.to(rank)) - truth.to(rank)).abs().mean()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


def learn(rank, world, net, train_set, tests, out, epochs):
    sampler = DistributedSampler(train_set) if world > 1 else None
    loader = DataLoader(train_set, batch_size=64, sampler=sampler)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    best = float("inf")

    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        loss = one_epoch(rank, net, opt, loader)
        if world > 1:
            mean = torch.tensor(loss, device=rank)
            dist.all_reduce(mean)
            loss = mean.item() / world

        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}")
            if loss < best:
                best = loss
                torch.save(net.state_dict(), f"{out}/best.pt")

        tag = f"_epoch_{epoch}"
        for sample, events in tests.items():
            run_probe(rank, world, net, sample, events, out, tag)
        if rank == 0:
            for sample in tests:
                report = make_plots(out, sample, tag)
                print(f"{sample}: {report}")

        if world > 1:
            dist.barrier()
