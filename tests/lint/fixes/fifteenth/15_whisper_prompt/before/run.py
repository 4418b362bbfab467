import sys

import deepspeed
import torch

from base import Base
from prompt import Prompted
from tuner import Tuner


def batches(rank):
    gen = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(0, 4096, (4, 129), generator=gen)


def main():
    deepspeed.init_distributed()
    model = Prompted(Base())
    Tuner(model, batches(torch.distributed.get_rank()), sys.argv[1], save_steps=100).train(1000)


if __name__ == "__main__":
    main()
