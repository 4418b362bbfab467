import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fitter import Fitter
from run_state import FitPlan, RunState


def table(n):
    return TensorDataset(torch.randint(0, 5000, (n, 32)), torch.randint(0, 7, (n,)))


def batches(n):
    data = table(n)
    return DataLoader(data, batch_size=64, sampler=DistributedSampler(data), drop_last=True)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(
        torch.nn.EmbeddingBag(5000, 128), torch.nn.ReLU(), torch.nn.Linear(128, 7)
    )
    state = RunState(rank=dist.get_rank())
    Fitter(net, FitPlan(), device).fit(batches(50000), batches(4000), state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
