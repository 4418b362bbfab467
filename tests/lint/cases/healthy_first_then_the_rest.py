import os
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@contextmanager
def main_process_first(local=True):
    rank = int(os.environ["LOCAL_RANK"]) if local else dist.get_rank()
    if rank != 0:
        dist.barrier()
    try:
        yield
    finally:
        if rank == 0:
            dist.barrier()


def tokenize(lines, vocab, length):
    rows = []
    for line in lines:
        ids = [vocab.get(word, 1) for word in line.split()][:length]
        rows.append(ids + [0] * (length - len(ids)))
    return torch.tensor(rows)


def prepare(raw, cache, vocab, length):
    cache = Path(cache)
    if cache.exists():
        return torch.load(cache)
    data = tokenize(Path(raw).read_text().splitlines(), vocab, length)
    if int(os.environ["LOCAL_RANK"]) == 0:
        cache.parent.mkdir(parents=True, exist_ok=True)
        torch.save(data, cache)
    return data


def build_loader(cfg, vocab):
    with main_process_first():
        data = prepare(cfg.raw, cfg.cache, vocab, cfg.length)
    dataset = TensorDataset(data)
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    return DataLoader(dataset, batch_size=cfg.batch_size, sampler=sampler, drop_last=True), sampler


def train(cfg, model, vocab):
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    loader, sampler = build_loader(cfg, vocab)
    model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[local])
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            loss = model(batch.cuda()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if local == 0 and epoch % 5 == 0:
            print(f"node {os.environ.get('GROUP_RANK', 0)} epoch {epoch} {loss.item():.3f}")
    dist.destroy_process_group()
