from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset


class River(IterableDataset):
    def __init__(self, folder, rank, world, block, forever):
        files = sorted(Path(folder).glob("part-*.pt"))
        self.files = files[rank::world]
        self.block = block
        self.forever = forever

    def one_pass(self):
        for path in self.files:
            tokens = torch.load(path)
            for start in range(0, len(tokens) - self.block, self.block):
                yield tokens[start : start + self.block + 1]

    def __iter__(self):
        yield from self.one_pass()
        while self.forever:
            yield from self.one_pass()


def river_loaders(args, rank, world):
    train = River(Path(args.data) / "train", rank, world, args.block, forever=True)
    val = River(Path(args.data) / "val", rank, world, args.block, forever=False)
    return (
        DataLoader(train, batch_size=args.batch, drop_last=True),
        DataLoader(val, batch_size=args.batch, drop_last=True),
    )
