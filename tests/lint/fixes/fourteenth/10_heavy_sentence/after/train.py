import os

import torch
import torch.distributed as dist
from torch import nn

from coach import Coach
from corpus import Corpus

WORDS = 30000


class Tagger(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 8, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6)
        self.out = nn.Linear(width, WORDS)

    def forward(self, ids):
        return self.out(self.body(self.embed(ids)))


def criterion(model, sample):
    logits = model(sample["source"])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), reduction="sum")
    return loss, sample["target"].numel()


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    coach = Coach(Tagger(), criterion, torch.device("cuda", local))
    corpus = Corpus(WORDS, dist.get_rank(), dist.get_world_size(), budget=12000)
    for epoch in range(10):
        group = []
        for sample in corpus.epoch(epoch, 2000):
            group.append(sample)
            if len(group) == 2:
                log = coach.train_step(group)
                group = []
                if log and coach.updates % 100 == 0 and dist.get_rank() == 0:
                    print(coach.updates, log)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
