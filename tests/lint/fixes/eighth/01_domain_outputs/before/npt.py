import os

import torch
import torch.distributed as dist

from halo import HaloPlan, consolidate
from potential import PairPotential


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def split_domain(n_atoms, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    owned = n_atoms // world
    ghosts = 8
    counts = [0] * world
    counts[(rank + 1) % world] = ghosts
    recv = [0] * world
    recv[(rank - 1) % world] = ghosts
    gen = torch.Generator().manual_seed(rank)
    pos = torch.rand(owned + ghosts, 3, generator=gen).to(device)
    owner_index = torch.arange(ghosts, device=device)
    return pos, HaloPlan(counts, recv, owned), owner_index


def main(steps=200, dt=0.002, pressure=0.1):
    device = setup()
    model = PairPotential().to(device).eval()
    cell = torch.eye(3, device=device) * 12.0
    pos, plan, owner_index = split_domain(4096, device)
    vel = torch.zeros(plan.owned, 3, device=device)
    for step in range(steps):
        out = consolidate(model(pos, cell), plan, owner_index)
        vel += dt * out["forces"].detach()
        pos = pos.detach()
        pos[: plan.owned] += dt * vel
        strain = dt * (out["stress"].diagonal().mean() - pressure)
        cell = cell * (1.0 + strain.clamp(-1e-3, 1e-3))
        if step % 50 == 0 and dist.get_rank() == 0:
            print(step, out["energy"].item(), cell[0, 0].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
