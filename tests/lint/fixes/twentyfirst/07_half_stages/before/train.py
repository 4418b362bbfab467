import argparse

import torch
import torch.distributed as dist

from engine import OneForwardOneBackward, build_stage, token_stream
from half_optimizer import HalfOptimizer


class Groups:
    def __init__(self, tensor_size, stage_count):
        rank, model_size = dist.get_rank(), tensor_size * stage_count
        self.tensor = self.model = None
        for start in range(0, dist.get_world_size(), tensor_size):
            ranks = list(range(start, start + tensor_size))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.tensor = group
        for start in range(0, dist.get_world_size(), model_size):
            ranks = list(range(start, start + model_size))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.model = group
        self.tensor_rank = rank % tensor_size
        self.stage = rank % model_size // tensor_size

    def owns(self, p):
        return getattr(p, "is_split", False) or self.tensor_rank == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5000)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    groups = Groups(args.tensor, args.stages)
    stage = build_stage(groups, args.stages).half().cuda()
    optimizer = HalfOptimizer(torch.optim.AdamW(stage.parameters(), lr=2e-4), groups, max_norm=1.0)
    schedule = OneForwardOneBackward(stage, groups, micro_batches=8, scale_loss=optimizer.scale_loss)
    batches = token_stream(groups)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = schedule.run(next(batches))
        done, norm = optimizer.step()
        if loss is not None and step % 20 == 0:
            print(f"step {step} loss {loss:.4f} norm {norm} scale {optimizer.scale.value} done {done}")


if __name__ == "__main__":
    main()
