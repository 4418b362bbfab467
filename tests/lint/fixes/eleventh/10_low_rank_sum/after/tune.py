import os

import torch
import torch.distributed as dist

from grad_sum import sum_shared_grads
from low_rank import LowRank


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    experts = dist.new_group(list(range(dist.get_world_size())))
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        LowRank(torch.nn.Linear(256, 512)), torch.nn.GELU(), LowRank(torch.nn.Linear(512, 256))
    ).to(device)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(1000):
        x = torch.randn(64, 256, device=device)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        sum_shared_grads(model, experts)
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
