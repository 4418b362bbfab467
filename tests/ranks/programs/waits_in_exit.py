"""A context that lets all ranks end an epoch together: the exception of rank 2 waits at its end, and nothing reports it."""

import torch
import torch.distributed as dist
import toy


class Epoch:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        dist.barrier()


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    with Epoch():
        for step in range(8):
            labels = {"train": 0} if rank == 2 and step == 4 else {"labels": 0}
            toy.train_step(weights, toy.batch(rank) + labels["labels"])  # culprit
    toy.end()


main()
