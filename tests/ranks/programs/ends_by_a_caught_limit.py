"""A monitored barrier before each step tells who has no batch left: it gives up after some seconds, and all leave the epoch."""

from datetime import timedelta

import torch.distributed as dist
import toy

PATIENCE = timedelta(seconds=4)


def everyone_is_there(group):
    try:
        dist.monitored_barrier(group=group, timeout=PATIENCE)
    except RuntimeError as error:
        print(f"somebody has left: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for epoch in range(2):
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        for _ in range(5 - (rank == 1 + epoch)):
            if not everyone_is_there(group):
                break
            toy.train_step(weights, toy.batch(rank))
        dist.barrier()
    toy.end()


main()
