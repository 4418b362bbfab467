import os
import random

import torch
import torch.distributed as dist

from expert_pruner import ExpertPruner
from moe import TwoTowers


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = TwoTowers().to(device).eval()
    pruner = ExpertPruner(keep=8, device=device)
    pruner.attach(model)
    samples = [(torch.randn(64, 128), random.Random(i).choice(["code", "prose"])) for i in range(24)]
    with torch.no_grad():
        for x, kind in samples[dist.get_rank() :: dist.get_world_size()]:
            model(x.to(device), kind)
    pruner.finish(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
