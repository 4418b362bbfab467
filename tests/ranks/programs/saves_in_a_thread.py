"""A thread saves with a group of its own. Rank 1 waits for its end before each step, rank 0 writes in it while its main thread steps on."""

import threading
import time

import torch.distributed as dist
import toy

WRITES_S = 4


def save(rank, group):
    dist.barrier(group=group)
    if rank == 0:
        time.sleep(WRITES_S)
    dist.barrier(group=group)


def main():
    rank = toy.begin()
    group = dist.new_group()
    weights = toy.train(rank)
    for _ in range(2):
        saver = threading.Thread(target=save, args=(rank, group))
        saver.start()
        if rank == 1:
            saver.join()
        toy.train_step(weights, toy.batch(rank))
        saver.join()
    toy.end()


main()
