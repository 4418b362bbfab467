import torch
from torch import nn
from torch.utils.data import Dataset


class Utterances(Dataset):
    def __init__(self, count=20000, seed=3):
        gen = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(120, 1600, (count,), generator=gen).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        return torch.randn(self.lengths[i], 40, generator=gen)


def collate(clips):
    return nn.utils.rnn.pad_sequence(clips, batch_first=True)


class MaskedEncoder(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.gru = nn.GRU(40, width, batch_first=True)
        self.out = nn.Linear(width, 40)

    def forward(self, clips):
        hidden = torch.rand(clips.shape[:2], device=clips.device) < 0.3
        seen, _ = self.gru(clips.masked_fill(hidden[..., None], 0.0))
        return (self.out(seen) - clips).pow(2).mean(-1)[hidden].mean()
