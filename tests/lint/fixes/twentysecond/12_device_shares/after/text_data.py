import math
import random
from dataclasses import dataclass
from typing import Dict, List

import torch


@dataclass
class Example:
    tokens: List[int]
    label: int


def shard(examples: List[Example], rank: int, world_size: int) -> List[Example]:
    """The examples of one process."""
    share = len(examples) // world_size
    begin = rank * share
    end = len(examples) if rank == world_size - 1 else begin + share
    return examples[begin:end]


def pad_batch(batch: List[Example], pad: int = 0) -> Dict[str, torch.Tensor]:
    longest = max(len(e.tokens) for e in batch)
    tokens = torch.full((len(batch), longest), pad)
    for i, e in enumerate(batch):
        tokens[i, : len(e.tokens)] = torch.tensor(e.tokens)
    return {"tokens": tokens, "labels": torch.tensor([e.label for e in batch])}


class BatchIterator:
    """Shuffled, padded batches of the examples of this process."""

    def __init__(self, examples, batch_size, num_batches, seed=0):
        self.examples = examples
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.seed = seed
        self.epoch = 0

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        order = list(self.examples)
        random.Random(self.seed + self.epoch).shuffle(order)
        self.epoch += 1
        done, batch = 0, None
        for begin in range(0, len(order), self.batch_size):
            batch = pad_batch(order[begin : begin + self.batch_size])
            done += 1
            yield batch
        while batch is not None and done < self.num_batches:
            done += 1
            yield batch


class DataHandler:
    def __init__(self, batch_size: int, world_size: int, rank: int):
        self.batch_size = max(1, batch_size // world_size)
        self.world_size = world_size
        self.rank = rank

    def train_iter(self, examples: List[Example]) -> BatchIterator:
        largest = len(examples) // self.world_size + len(examples) % self.world_size
        num_batches = math.ceil(largest / self.batch_size)
        return BatchIterator(shard(examples, self.rank, self.world_size), self.batch_size, num_batches)
