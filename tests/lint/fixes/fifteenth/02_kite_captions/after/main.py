import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from kite import Kite
from train import evaluate, train_one_epoch


def get_data():
    pairs = TensorDataset(torch.randn(4096, 3, 64, 64), torch.randint(0, 2000, (4096, 12)))
    labelled = TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(0, 20, (512,)))
    return {
        "train": DataLoader(pairs, batch_size=64, sampler=DistributedSampler(pairs), drop_last=True),
        "val": DataLoader(TensorDataset(*pairs[:256]), batch_size=64),
        "classes": DataLoader(labelled, batch_size=64),
        "names": [torch.randint(0, 2000, (4, 12)) for _ in range(20)],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--val-every", type=int, default=1)
    parser.add_argument("--zero-shot-every", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    args.rank, args.distributed = dist.get_rank(), True
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = DDP(Kite().to(device), device_ids=[device.index])
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    data = get_data()
    for epoch in range(1, args.epochs + 1):
        data["train"].sampler.set_epoch(epoch)
        train_one_epoch(model, data, opt, device)
        evaluate(model, data, epoch, args, device)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
