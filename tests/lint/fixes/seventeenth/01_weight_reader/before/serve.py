import argparse
import os

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from reader import NodeLayout, SafetensorReader


def slice_for_rank(name, tensor, rank, world):
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "up_proj.weight", "gate_proj.weight")):
        return tensor.chunk(world, dim=0)[rank].contiguous()
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return tensor.chunk(world, dim=1)[rank].contiguous()
    return tensor


def build(args, layout):
    config = AutoConfig.from_pretrained(args.model)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = SafetensorReader(layout, headroom=args.headroom).read(args.model)
    rank, world = dist.get_rank(), dist.get_world_size()
    local = {k: slice_for_rank(k, v, rank, world).cuda() for k, v in weights.items()}
    model.load_state_dict(local, strict=False, assign=True)
    return model.eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--headroom", type=float, default=0.9)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layout = NodeLayout(int(os.environ["LOCAL_WORLD_SIZE"]))
    model = build(args, layout)

    used = torch.tensor([torch.cuda.memory_allocated()], device="cuda")
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"loaded {sum(p.numel() for p in model.parameters())} parameters, peak {used.item() >> 20} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
