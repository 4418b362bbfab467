import os
import random

import torch
import torch.distributed as dist

from exchange import RowExchange, tokens_everywhere
from experts import SlicedExperts

WIDTH, LIMIT = 512, 4096


def pending(rank):
    rng = random.Random(rank)
    while True:
        yield max(1, int(rng.paretovariate(0.7)) % 20000)


@torch.inference_mode()
def main(turns=1000):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    group = dist.group.WORLD
    torch.manual_seed(11)
    layers = [SlicedExperts(WIDTH, 8, RowExchange(group), LIMIT).to(device) for _ in range(4)]
    for turn, count in zip(range(turns), pending(dist.get_rank())):
        counts = tokens_everywhere(count, group, device)
        rows = torch.randn(count, WIDTH, device=device)
        for layer in layers:
            rows = rows + layer(rows, counts)
        if dist.get_rank() == 0 and turn % 50 == 0:
            print(turn, sum(counts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
