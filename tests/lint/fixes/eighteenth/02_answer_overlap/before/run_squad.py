import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer

from reader_model import SpanReader
from squad_files import SquadFeatures, collate


def all_have_batch(batch, device):
    flag = torch.tensor(0 if batch is None else 1, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def run_epoch(model, loader, device, optimizer=None):
    model.train(optimizer is not None)
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if not all_have_batch(batch, device):
            break
        batch = {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}
        with torch.set_grad_enabled(optimizer is not None):
            loss = model(batch) if optimizer is not None else model.module(batch)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.module.overlap.get_metric(reset=True)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    tokenizer = AutoTokenizer.from_pretrained("roberta-base")
    train = SquadFeatures("train-v1.1.json", tokenizer)
    dev = SquadFeatures("dev-v1.1.json", tokenizer, shard=(dist.get_rank(), dist.get_world_size()))
    train_loader = DataLoader(train, 16, sampler=DistributedSampler(train), collate_fn=collate, drop_last=True)
    dev_loader = DataLoader(dev, 32, collate_fn=collate)
    model = DistributedDataParallel(SpanReader("roberta-base", tokenizer, device).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for epoch in range(3):
        train_loader.sampler.set_epoch(epoch)
        run_epoch(model, train_loader, device, optimizer)
        scores = run_epoch(model, dev_loader, device)
        if dist.get_rank() == 0:
            print(epoch, scores)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
