import random

import torch
from torch.utils.data import DataLoader, Dataset


class LatentFolder(Dataset):
    def __init__(self, files, channels=16):
        self.files = files
        self.channels = channels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        item = torch.load(self.files[index], map_location="cpu")
        return {"latents": item["latents"][: self.channels], "prompt_embeds": item["prompt_embeds"]}


class Backend:
    def __init__(self, config, files):
        self.id = config["id"]
        self.batch_size = config["train_batch_size"]
        self.probability = config.get("probability", 1.0)
        self.loader = DataLoader(LatentFolder(files), self.batch_size, shuffle=True, drop_last=True, num_workers=2)
        self._it = None

    def next_batch(self):
        if self._it is None:
            self._it = iter(self.loader)
        try:
            return next(self._it)
        except StopIteration:
            self._it = iter(self.loader)
            return next(self._it)


class BackendMixture:
    """Draws one data set per step, by its weight."""

    def __init__(self, backends, seed):
        self.backends = backends
        self.rng = random.Random(seed)

    def next_batch(self):
        weights = [b.probability for b in self.backends]
        backend = self.rng.choices(self.backends, weights=weights)[0]
        return backend.id, backend.next_batch()
