import torch
from torch.utils.data import Dataset


class Voices(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.seconds = (torch.rand(count, generator=gen) * 18 + 1).tolist()

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        frames = int(self.seconds[index] * 100)
        gen = torch.Generator().manual_seed(index)
        return torch.randn(frames, 40, generator=gen), index % 30


def pad(items):
    feats = torch.nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    return feats, torch.tensor([t for _, t in items])
