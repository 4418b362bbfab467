import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from text_data import DataHandler, Example


class IntentModel(nn.Module):
    def __init__(self, vocab, labels, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, labels)

    def forward(self, tokens):
        h, _ = self.lstm(self.embed(tokens))
        return self.out(h.max(dim=1).values)


def read(path):
    with open(path) as f:
        return [Example(r["tokens"], r["label"]) for r in map(json.loads, f)]


class Trainer:
    def __init__(self, model, device, epochs, lr):
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.device = device
        self.epochs = epochs

    def run(self, batches):
        for epoch in range(self.epochs):
            total = torch.zeros(1, device=self.device)
            for batch in batches:
                logits = self.model(batch["tokens"].to(self.device))
                loss = nn.functional.cross_entropy(logits, batch["labels"].to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.detach()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                mean = total.item() / (len(batches) * dist.get_world_size())
                print(f"epoch {epoch + 1}: loss {mean:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train_path")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--vocab", type=int, default=20000)
    parser.add_argument("--labels", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.manual_seed(1)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    handler = DataHandler(args.batch_size, dist.get_world_size(), dist.get_rank())
    batches = handler.train_iter(read(args.train_path))
    Trainer(IntentModel(args.vocab, args.labels), device, args.epochs, 1e-3).run(batches)
    if dist.get_rank() == 0:
        print("done")


if __name__ == "__main__":
    main()
