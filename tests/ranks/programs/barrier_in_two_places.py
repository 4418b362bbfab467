"""All ranks but 0 wait in one barrier until rank 0 has made the features and calls another; features that are there already lead past it."""

from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.utils.data import DataLoader


def features(rank: int, part: str, folder: Path) -> torch.Tensor:
    if rank != 0:
        dist.barrier()
    path = folder / f"{part}.pt"
    if path.exists():  # culprit
        return torch.load(path)
    made = toy.batch(len(part), rows=32)
    if rank == 0:
        torch.save(made, path)
        dist.barrier()  # culprit
    return made


def epoch(weights: torch.Tensor, rows: torch.Tensor) -> None:
    for inputs in DataLoader(rows, batch_size=8):
        toy.train_step(weights, inputs)


def main() -> None:
    rank, weights, folder = toy.begin(), torch.zeros(4, 1), Path("features")
    if rank == 0:
        folder.mkdir()
    dist.barrier()
    for part in ("coins", "armour", "prints", "armour", "coins"):
        epoch(weights, features(rank, part, folder))
    toy.end()


main()
