import torch


class Corpus:
    def __init__(self, words, rank, world, budget):
        self.words = words
        self.rank = rank
        self.world = world
        self.budget = budget

    def epoch(self, number, count):
        gen = torch.Generator().manual_seed(number * self.world + self.rank)
        for _ in range(count):
            length = int(torch.randint(8, 1024, (1,), generator=gen))
            rows = max(self.budget // length, 1)
            ids = torch.randint(1, self.words, (rows, length), generator=gen)
            yield {"source": ids, "target": ids.roll(-1, 1)}
