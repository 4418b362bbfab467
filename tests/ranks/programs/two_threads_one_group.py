"""A background thread shares the group with the training loop. On rank 1 the thread comes first, elsewhere the loop does."""

import threading
import time

import torch
import torch.distributed as dist
import toy


def collect_metrics(delay_s):
    time.sleep(delay_s)
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(1))  # culprit


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    thread = threading.Thread(target=collect_metrics, args=(0 if rank == 1 else 0.8,), daemon=True)
    thread.start()
    time.sleep(0.4)  # data loading
    toy.train_step(weights, toy.batch(rank))
    thread.join()
    toy.end()


main()
