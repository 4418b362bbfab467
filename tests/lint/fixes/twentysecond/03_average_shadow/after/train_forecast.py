import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ema import WeightAverage

CONF = {"vars": 71, "width": 1030, "blocks": 8, "lr": 2e-4, "steps": 20000, "save_every": 1000, "out": "runs/era"}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Forecaster(nn.Module):
    def __init__(self, conf):
        super().__init__()
        self.encode = nn.Linear(conf["vars"], conf["width"])
        self.blocks = nn.ModuleList(Block(conf["width"]) for _ in range(conf["blocks"]))
        self.decode = nn.Linear(conf["width"], conf["vars"])

    def forward(self, x):
        h = self.encode(x)
        for block in self.blocks:
            h = block(h)
        return x + self.decode(h)


def save(conf, step, model, ema):
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    average = ema.state_dict(model)
    if dist.get_rank() == 0:
        os.makedirs(conf["out"], exist_ok=True)
        torch.save({"step": step, "model": weights}, os.path.join(conf["out"], "checkpoint.pt"))
        torch.save(average, os.path.join(conf["out"], "checkpoint_ema.pt"))
    dist.barrier()


def main(conf=CONF):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = Forecaster(conf).cuda()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=conf["lr"])
    ema = WeightAverage(model)
    generator = torch.Generator(device="cuda").manual_seed(dist.get_rank())

    for step in range(1, conf["steps"] + 1):
        state = torch.randn(256, conf["vars"], device="cuda", generator=generator)
        target = state.roll(1, dims=-1)
        loss = (model(state) - target).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
        if step % conf["save_every"] == 0:
            save(conf, step, model, ema)


if __name__ == "__main__":
    main()
