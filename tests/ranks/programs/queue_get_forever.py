"""The thread that prefetches batches dies on rank 2; the training loop waits for its next batch."""

import queue
import threading

import torch
import toy


def prefetch(rank, batches):
    for number in range(10):
        if rank == 2 and number == 5:
            return  # an error that nobody sees
        batches.put(toy.batch(rank + number))


def main():
    rank = toy.begin()
    weights, batches = torch.zeros(4, 1), queue.Queue(maxsize=2)
    threading.Thread(target=prefetch, args=(rank, batches), daemon=True).start()
    for _ in range(10):
        inputs = batches.get()  # culprit
        toy.train_step(weights, inputs)
    toy.end()


main()
