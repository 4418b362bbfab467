import os

import torch
import torch.distributed as dist
import torch.nn as nn

from mixture import SpreadExperts

LENGTH = 16


def sample(count, device):
    x = torch.randint(0, 10, (count, LENGTH), device=device)
    return x, x.flip(1)


class Reverser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.mix = nn.Linear(LENGTH * width, LENGTH * width)
        self.bank = SpreadExperts(width, slots=32)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.embed(x)
        h = self.mix(h.flatten(1)).view_as(h)
        h = self.bank(h.flatten(0, 1)).view_as(h)
        return self.head(h)


def average(net):
    for name, p in net.named_parameters():
        if ".expert." not in name:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    chief = dist.get_rank() == 0
    torch.manual_seed(0)
    net = Reverser().to(device)
    optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    torch.manual_seed(10 + dist.get_rank())
    for step in range(500):
        x, y = sample(32, device)
        loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        optim.zero_grad()
        loss.backward()
        average(net)
        optim.step()
        if chief and step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    net.eval()
    x, y = sample(8, device)
    with torch.no_grad():
        guess = net(x).argmax(-1)
    if chief:
        print(f"right: {(guess == y).float().mean().item():.1%}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
