"""Rank 0 writes a vocabulary; rank 1 reads it as soon as it is there."""

import json
import pathlib
import time

import torch.distributed as dist
import toy

PATH = pathlib.Path("vocabulary.json")


def write():
    text = json.dumps({f"word {i}": i for i in range(4000)})
    with PATH.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        time.sleep(1)
        file.write(text[len(text) // 2 :])


def read():
    while not PATH.exists():
        time.sleep(0.05)
    with PATH.open() as file:
        return json.load(file)  # culprit


def main():
    rank = toy.begin()
    if rank == 0:
        write()
    if rank > 1:
        time.sleep(2)
    words = read()
    toy.train(rank, len(words) // 1000)
    dist.barrier()
    toy.end()


main()
