import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

from datamodule import DataArgs, train_dataloader


class Utterances(torch.utils.data.Dataset):
    def __init__(self, root):
        self.items = torch.load(os.path.join(root, "cuts.pt"))
        self.durations = [item["duration"] for item in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]["codes"]

    def collate(self, codes):
        return pad_sequence(codes, batch_first=True)


def run(root, epochs):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = nn.Sequential(nn.Embedding(1025, 256), nn.Linear(256, 1025)).to(device)
    model = DDP(net, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = train_dataloader(Utterances(root), DataArgs())
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch)
        for codes in loader:
            codes = codes.to(device)
            logits = model(codes[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    run("data/tokenized", 20)
