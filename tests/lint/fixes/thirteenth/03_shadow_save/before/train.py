import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from net import sharded_forecast
from shadow import ShadowWeights


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(11)
    net = sharded_forecast(mesh, device)
    shadow = ShadowWeights(net)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    for epoch in range(3):
        for _ in range(50):
            x = torch.randn(32, 10, device=device)
            loss = (net(x) - x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            shadow.update()
        state = shadow.full_state()
        if dist.get_rank() == 0:
            torch.save(state, f"shadow_{epoch}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
