import torch


class Packed:
    def __init__(self, documents, rank, world, length, repeat):
        self.documents = documents
        self.rank = rank
        self.world = world
        self.length = length
        self.repeat = repeat

    def _mine(self):
        while True:
            yield from self.documents[self.rank :: self.world]
            if not self.repeat:
                return

    def __iter__(self):
        held = []
        for document in self._mine():
            held.extend(document)
            while len(held) > self.length:
                row = torch.tensor(held[: self.length + 1])
                held = held[self.length :]
                yield {"ids": row[None, :-1], "labels": row[None, 1:]}
