import os

import torch
import torch.distributed as dist

from shuffle_probe import ShuffleProbe
from split_table import Ranker

SIZES = (10000, 4000, 500)


def log_batches(device, steps=200, size=8):
    gen = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        yield [
            torch.where(
                torch.rand(size, 1, generator=gen) < 0.4,
                torch.randint(0, n, (size, 6), generator=gen),
                torch.full((size, 6), -1),
            ).to(device)
            for n in SIZES
        ]


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = Ranker(SIZES).to(device).eval()
    scores = [None] * dist.get_world_size()
    dist.all_gather_object(scores, ShuffleProbe(net).run(log_batches(device)))
    if dist.get_rank() == 0:
        print(scores)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
