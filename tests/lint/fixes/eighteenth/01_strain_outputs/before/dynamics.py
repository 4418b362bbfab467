import argparse
import os

import torch
import torch.distributed as dist

from potential import GRAPH_LEVEL, PairPotential, PotentialSpec


class HaloPlan:
    """Which rows of the local block belong to which neighbour."""

    def __init__(self, n_owned, n_halo, device):
        self.world = dist.get_world_size()
        self.n_owned = n_owned
        self.send = [n_halo] * self.world
        self.send[dist.get_rank()] = 0
        self.device = device

    def reverse(self, value):
        owned, halo = value[: self.n_owned], value[self.n_owned:]
        recv = torch.empty_like(halo)
        dist.all_to_all_single(recv, halo.contiguous(), self.send, self.send)
        owned = owned.clone()
        owned[: recv.shape[0]] += recv[: owned.shape[0]]
        return owned


def consolidate(outputs, plan):
    merged = {}
    for name, value in outputs.items():
        if name in GRAPH_LEVEL:
            dist.all_reduce(value)
            merged[name] = value
        else:
            merged[name] = plan.reverse(value)
    return merged


class NPTIntegrator:
    def __init__(self, model, plan, dt=0.5, pressure=1.0):
        self.model, self.plan = model, plan
        self.dt, self.pressure = dt, pressure

    def step(self, state):
        outputs = self.model(state["numbers"], state["positions"].detach(), state["cell"])
        outputs = consolidate(outputs, self.plan)
        n = self.plan.n_owned
        state["velocities"] += self.dt * outputs["forces"]
        moved = state["positions"].detach().clone()
        moved[:n] += self.dt * state["velocities"]
        state["positions"] = moved
        strain = (torch.trace(outputs["stress"]) / 3 - self.pressure) * 1e-4
        state["cell"] = state["cell"] * (1 + strain)
        return outputs["energy"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--owned", type=int, default=64)
    parser.add_argument("--halo", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rows = args.owned + args.halo * (dist.get_world_size() - 1)
    spec = PotentialSpec(active={"energy", "forces", "stress"})
    model = PairPotential(spec).to(device)
    plan = HaloPlan(args.owned, args.halo, device)
    state = {
        "numbers": torch.randint(1, 90, (rows,), device=device),
        "positions": torch.rand(rows, 3, device=device) * 10,
        "velocities": torch.zeros(args.owned, 3, device=device),
        "cell": torch.eye(3, device=device) * 10,
    }
    npt = NPTIntegrator(model, plan)
    for i in range(args.steps):
        energy = npt.step(state)
        if i % 50 == 0 and dist.get_rank() == 0:
            print(f"step {i} energy {energy.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
