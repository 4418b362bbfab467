"""Rank 1 alone finds a checkpoint, and has fewer epochs to make."""

import json
import pathlib
import tempfile

import torch
import torch.distributed as dist
import toy


def read_state(folder, rank):
    path = pathlib.Path(folder) / f"state_{rank}.json"
    return json.loads(path.read_text())["epoch"] + 1 if path.exists() else 0


def train_epoch(weights, rank):
    for _ in range(3):
        toy.train_step(weights, toy.batch(rank))


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    with tempfile.TemporaryDirectory() as folder:
        if rank == 1:
            (pathlib.Path(folder) / "state_1.json").write_text('{"epoch": 1}')
        start = read_state(folder, rank)  # culprit
        for _ in range(start, 6):
            train_epoch(weights, rank)
        dist.barrier()
    toy.end()


main()
