"""Rank 0 tokenizes the corpus before the first barrier, the others wait for the cache."""

import time

import torch.distributed as dist
import toy

# Right are the call under the condition, and every line on which rank 0 may be meanwhile.


def tokenize(documents):
    tokens = []
    for text in documents:
        tokens += [hash(word) % 5000 for word in text.split()]  # culprit
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
