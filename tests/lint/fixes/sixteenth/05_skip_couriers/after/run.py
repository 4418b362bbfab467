import argparse
import os

import torch
import torch.distributed as dist

from stages import Stage, micro_batches
from wiring import Courier


@torch.inference_mode()
def run(args):
    stage_index = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stage = Stage(args.width).to(device)
    courier = Courier(stage_index, (args.rows, args.width), device)
    first = micro_batches(args.rows, args.width, args.micro, device)
    total = torch.zeros((), device=device)
    for _ in range(args.micro):
        inputs = [next(first)] if stage_index == 0 else courier.fetch()
        out = stage(*inputs)
        courier.deliver(out)
        total += out.mean()
    return total / args.micro


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--micro", type=int, default=16)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    assert dist.get_world_size() == 4
    mean = run(args)
    if dist.get_rank() == 3:
        print(f"mean output {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
