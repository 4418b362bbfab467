import sys

import torch
import torch.distributed as dist

from translator import Translator
from world import World


def stream(world, count, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(32, 40, generator=gen)
        y = torch.randint(0, 12, (32,), generator=gen)
        yield x.to(world.device), y.to(world.device)


def main():
    world = World()
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 12))
    job = Translator(model, world, sys.argv[1])
    val = list(stream(world, 10, 99)) if world.is_main else None
    print("early stopped:", job.train(stream(world, 20000, world.rank), val, 500, {"limit": 3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
