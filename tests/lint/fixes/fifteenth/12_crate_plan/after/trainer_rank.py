import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from planner import Planner

log = logging.getLogger("rank")


class TrainerRank:
    def __init__(self):
        self.net = DDP(nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000)))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.planner = Planner(sizes=(8192, 4096, 2048), budget=512 << 20, bytes_per_token=1 << 16)

    def train(self, sequences):
        crates, turns = self.planner.choose([len(s) for s in sequences])
        for turn in range(turns):
            length = sum(crates[turn].items) if turn < len(crates) else 2
            tokens = torch.randint(0, 1000, (1, length))
            logits = self.net(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            (loss if turn < len(crates) else loss * 0).backward()
        self.opt.step()
        self.opt.zero_grad()

    def serve(self, jobs):
        for number, sequences in enumerate(jobs):
            try:
                self.train(sequences)
            except ValueError as error:
                log.warning("job %d is left out: %s", number, error)
                self.opt.zero_grad()


def jobs(rank, count=50):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(count):
        lengths = torch.randint(16, 9000, (12,), generator=gen).tolist()
        yield [torch.zeros(n, dtype=torch.long) for n in lengths]


def main():
    dist.init_process_group("gloo")
    TrainerRank().serve(jobs(dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
