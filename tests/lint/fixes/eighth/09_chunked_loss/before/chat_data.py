import torch
from torch.utils.data import Dataset


class ChatTurns(Dataset):
    def __init__(self, count=4096, length=1024, vocab=8192, seed=0):
        self.count, self.length, self.vocab, self.seed = count, length, vocab, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.seed + index)
        tokens = torch.randint(0, self.vocab, (self.length,), generator=gen)
        prompt = int(torch.randint(16, self.length, (1,), generator=gen))
        labels = tokens.clone()
        labels[:prompt] = -100
        return {"tokens": tokens, "labels": labels}
