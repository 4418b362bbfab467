from functools import partial

import torch

from reader import BatchReader, ElementBatching


class InstructionCorpus:
    def __init__(self, path, encoder):
        with open(path) as f:
            self.lines = f.read().splitlines()
        self.encoder = encoder

    def _examples(self, team, max_len, min_len):
        for i in range(team.rank, len(self.lines), team.size):
            ids = self.encoder(self.lines[i])
            if min_len <= len(ids) <= max_len:
                yield ids

    def _batches(self, team, max_len, min_len, batching, pad):
        rows, longest = [], 0
        for ids in self._examples(team, max_len, min_len):
            if isinstance(batching, ElementBatching):
                full = max(longest, len(ids)) * (len(rows) + 1) > batching.max_elements
            else:
                full = len(rows) == batching.size
            if full and rows:
                yield self._stack(rows, pad)
                rows, longest = [], 0
            rows.append(ids)
            longest = max(longest, len(ids))
        if rows:
            yield self._stack(rows, pad)

    @staticmethod
    def _stack(rows, pad):
        width = max(len(r) for r in rows)
        return torch.tensor([r + [pad] * (width - len(r)) for r in rows])

    def reader(self, team, batching, max_len=512, min_len=4, num_accumulate=1, pad=0):
        pipeline = partial(self._batches, team, max_len, min_len, batching, pad)
        return BatchReader(
            pipeline, team, num_accumulate,
            in_step=True,
        )
