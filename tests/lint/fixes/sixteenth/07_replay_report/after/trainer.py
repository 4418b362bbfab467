import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from replay import ReplayCheck
from report import average, log_step, mismatch


class Router(nn.Module):
    def __init__(self, width=256, experts=16):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.Parameter(torch.randn(experts, width) / width)

    def forward(self, x):
        score = self.gate(x).softmax(-1)
        return (score @ self.experts), score.argmax(-1)


def is_reporter(mesh):
    return mesh["dp"].get_local_rank() == 0 and mesh["tp"].get_local_rank() == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--check-replay", action="store_true")
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    router = DDP(Router().to(device), process_group=mesh.get_group("dp"))
    opt = torch.optim.AdamW(router.parameters(), lr=3e-4)
    replay = ReplayCheck(args.check_replay)
    for step in range(args.steps):
        x = torch.randn(512, 256, device=device)
        out, chosen = router(x)
        replay.compare(chosen, x[:, :16].argmax(-1))
        loss = (out - x).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(router.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        averages = average({"loss": loss.detach(), "norm": norm}, mesh.get_group("dp"))
        checked = mismatch(replay, device) if replay.enabled else None
        if is_reporter(mesh):
            log_step(step, averages, checked, opt.param_groups[0]["lr"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
