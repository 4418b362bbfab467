import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence


class Tagger(nn.Module):
    def __init__(self, words=500, tags=7, width=64):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, tags)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        gen = torch.Generator().manual_seed(5)
        lengths = torch.randint(3, 60, (count,), generator=gen).tolist()
        self.items = [torch.randint(1, 500, (n,), generator=gen) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i] % 7


def collate(items):
    words, tags = zip(*items)
    return (
        pad_sequence(words, batch_first=True),
        pad_sequence(tags, batch_first=True, padding_value=-100),
    )
