import argparse
from datetime import timedelta

import torch
import torch.distributed as dist


def make_pair_group(rank, world_size, seed):
    generator = torch.Generator().manual_seed(seed)
    perm = torch.randperm(world_size, generator=generator).tolist()
    own = None
    for start in range(0, world_size, 2):
        pair = perm[start:start + 2]
        group = dist.new_group(pair, timeout=timedelta(seconds=30))
        if rank in pair:
            own = (group, pair)
    return own


def average_in_pair(model, group, size):
    for param in model.parameters():
        dist.all_reduce(param.data, group=group)
        param.data /= size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.rounds):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        group, pair = make_pair_group(rank, world_size, seed=step)
        average_in_pair(model, group, len(pair))


if __name__ == "__main__":
    main()
