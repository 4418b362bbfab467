import os
import random

import torch
import torch.distributed as dist

from policy import Policy


def rollouts(rank, step, n=4, longest=8192):
    rng = random.Random(1000 * step + rank)
    mask = torch.zeros(n, longest, dtype=torch.long)
    for row in mask:
        row[: rng.choice([300, 900, longest])] = 1
    return {"ids": torch.randint(0, 32000, (n, longest)), "mask": mask}


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(torch.nn.Embedding(32000, 256), torch.nn.Linear(256, 32000))
    policy = Policy(net, device)
    for step in range(100):
        policy.update(rollouts(dist.get_rank(), step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
