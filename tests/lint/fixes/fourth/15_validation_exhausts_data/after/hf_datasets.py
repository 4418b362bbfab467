import torch
from torch.utils.data import DataLoader, IterableDataset


class HuggingFaceDataset(IterableDataset):
    def __init__(self, data, tokenizer, seq_len, dp_rank, dp_world_size, infinite=False):
        self.data = data.shard(dp_world_size, dp_rank)
        self.tokenizer, self.seq_len, self.infinite = tokenizer, seq_len, infinite
        self._tokens = []

    def __iter__(self):
        need = 1 + self.seq_len
        while True:
            for sample in self.data:
                self._tokens.extend(self.tokenizer.encode(sample["text"]))
                while len(self._tokens) >= need:
                    x = torch.LongTensor(self._tokens[:need])
                    self._tokens = self._tokens[need:]
                    yield {"input": x[:-1]}, x[1:]
            if not self.infinite:
                break


def build_hf_validation_dataloader(data, tokenizer, job_config, dp_rank, dp_world_size, infinite=False):
    cfg = job_config.validation
    hf_ds = HuggingFaceDataset(data, tokenizer, cfg.seq_len, dp_rank, dp_world_size, infinite=infinite)
    return DataLoader(hf_ds, batch_size=cfg.local_batch_size)
