from torch.utils.data import IterableDataset


class PackedDataset(IterableDataset):
    def __init__(self, examples, seq_len, rank, world_size):
        self.examples = examples
        self.seq_len = seq_len
        self.rank = rank
        self.world_size = world_size

    def __iter__(self):
        tokens = []
        for i, example in enumerate(self.examples):
            if i % self.world_size != self.rank:
                continue
            tokens.extend(example)
            while len(tokens) >= self.seq_len + 1:
                yield tokens[: self.seq_len + 1]
                tokens = tokens[self.seq_len :]
