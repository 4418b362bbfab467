from collections import namedtuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from front import Front
from worker import Worker

Line = namedtuple("Line", "waves orders replies")
WORLD = 4


def run(rank, lines, url):
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=WORLD)
    with torch.no_grad():
        Worker(torch.nn.Linear(64, 64), lines[rank]).loop()


def main():
    ctx = mp.get_context("spawn")
    lines = [Line(*(ctx.Queue() for _ in Line._fields)) for _ in range(WORLD)]
    pool = mp.spawn(run, (lines, "tcp://127.0.0.1:29611"), nprocs=WORLD, join=False)
    front = Front(lines)
    front.wake()
    for client in range(8):
        front.request()
        front.wake()
    front.tell_all("leave")
    pool.join()


if __name__ == "__main__":
    main()
