import os

import torch
import torch.distributed as dist

from blocks import FramesNet
from reuse import ReuseGate


@torch.inference_mode()
def main(steps=50, tokens=8192, width=512):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    group = dist.group.WORLD
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    torch.manual_seed(21)
    net = FramesNet(ReuseGate(0.08, group), group).to(device)
    noise = torch.randn(1, tokens, width, device=device) * torch.linspace(0.2, 2.0, tokens, device=device)[:, None]
    x = noise.chunk(world, dim=1)[rank].contiguous()
    for level in torch.linspace(1.0, 0.02, steps).tolist():
        x = x - net(x, level) / steps
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x, group=group)
    if rank == 0:
        torch.save(torch.cat(parts, 1).cpu(), "frames.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
