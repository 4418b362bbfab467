"""Rank 0 tokenizes the corpus before the first barrier, the others wait for the cache."""

import time

import torch.distributed as dist
import toy

# Both lines are right: the call under the condition, and the line on which rank 0 is.


def tokenize(documents):
    tokens = []
    for text in documents:
        tokens += [hash(word) % 5000 for word in text.split()]
        time.sleep(0.1)  # culprit
    return tokens


def main():
    rank = toy.begin()
    if rank == 0:
        tokenize(["to be or not to be"] * 400)  # culprit
    dist.barrier()
    toy.train(rank)
    toy.end()


main()
