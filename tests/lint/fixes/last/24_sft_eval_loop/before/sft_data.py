import torch
import torch.distributed as dist
from datasets import load_dataset
from torch.utils.data import DataLoader, IterableDataset


class CatDataset(IterableDataset):
    def __init__(self, config, tokenizer, max_epochs=None):
        self.rows = load_dataset(config.name, split="train").shuffle(seed=config.seed)
        self.tokenizer = tokenizer
        self.seq_len = config.seq_len
        self.max_epochs = max_epochs
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        epoch, buffer = 0, []
        while self.max_epochs is None or epoch < self.max_epochs:
            for i, row in enumerate(self.rows):
                if i % self.world_size != self.rank:
                    continue
                buffer += self.tokenizer.encode(row["text"])
                while len(buffer) > self.seq_len:
                    ids = torch.tensor(buffer[:self.seq_len + 1])
                    buffer = buffer[self.seq_len:]
                    yield {
                        "input_ids": ids[:-1],
                        "target_ids": ids[1:],
                        "position_ids": torch.arange(self.seq_len),
                        "loss_mask": torch.ones(self.seq_len),
                    }
            epoch += 1


def setup_dataloader(config, tokenizer, max_epochs=None):
    return DataLoader(CatDataset(config, tokenizer, max_epochs), batch_size=config.micro_batch_size, drop_last=True)
