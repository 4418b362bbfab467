import os

import torch
import torch.distributed as dist
import torch.nn as nn

from expert_bank import ExpertBank


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), ExpertBank(128, per_rank=2), nn.Linear(128, 8)).to(device)
    local = {id(p) for p in net[1].experts.parameters()}
    shared = [p for p in net.parameters() if id(p) not in local]
    optim = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2000):
        x = torch.randn(4, 64, device=device)
        loss = nn.functional.cross_entropy(net(x), x[:, :8].argmax(-1))
        optim.zero_grad()
        loss.backward()
        for p in shared:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optim.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
