import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from hands import TimedHands
from voices import Voices, pad


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(40, 128, batch_first=True)
        self.out = nn.Linear(128, 30)

    def forward(self, feats):
        return self.out(self.rnn(feats)[0].mean(1))


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)

    voices = Voices(20000, 5)
    sampler = TimedHands(voices.seconds, 200.0, world, rank, shuffle=True)
    loader = DataLoader(voices, batch_sampler=sampler, collate_fn=pad, num_workers=2)
    model = DDP(Listener().to(local), device_ids=[local])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(6):
        sampler.set_epoch(epoch)
        for feats, target in loader:
            loss = nn.functional.cross_entropy(model(feats.to(local)), target.to(local))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(model.module.state_dict(), f"listener-{epoch}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
