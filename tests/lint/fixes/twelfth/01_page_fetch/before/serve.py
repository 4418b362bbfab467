import os
import random

import torch
import torch.distributed as dist

from fetch_book import FetchBook
from planner import Planner

TIER = os.environ.get("PAGE_TIER", "/mnt/pages")


def read_page(number):
    with open(os.path.join(TIER, f"{number}.page"), "rb") as f:
        return f.read()


def free_rows():
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pages // (4 << 20)


def draw():
    return [
        (random.getrandbits(48), random.sample(range(4096), random.randint(0, 64)), [random.random()] * 256)
        for _ in range(random.randint(0, 3))
    ]


def main():
    dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
    net = torch.nn.Linear(256, 64, bias=False)
    planner = Planner(FetchBook(read_page, free_rows(), group), net, group)
    with torch.no_grad():
        while True:
            planner.turn(draw)


if __name__ == "__main__":
    main()
