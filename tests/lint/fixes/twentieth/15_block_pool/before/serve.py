import os

import torch
import torch.distributed as dist

from engine import ModelEngine
from parallel_llama import load_rank
from pool import BlockPool


def prompts(path):
    with open(path) as handle:
        for line in handle:
            yield [int(t) for t in line.split()]


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    group = dist.group.WORLD
    model, config = load_rank(os.environ["MODEL"], group)
    pool = BlockPool(config.layers, config.kv_heads // dist.get_world_size(), config.head_dim)
    engine = ModelEngine(model, pool, group, max_tokens=32784, max_batch=64)
    engine.general_warmup()
    for token in engine.serve(prompts("prompts.txt")):
        if dist.get_rank() == 0:
            print(token)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
