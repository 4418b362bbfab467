import os
import sys

import torch
import torch.distributed as dist

from startup import make_tower


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    tower = make_tower(sys.argv[1], device)
    opt = torch.optim.AdamW((p for p in tower.parameters() if p.requires_grad), lr=1e-3)
    for step in range(200):
        x = torch.randn(64, 256, device=device)
        loss = (tower(x) - x.roll(1, -1)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
