import argparse
import os

import torch
import torch.distributed as dist

from request_queue import FileQueue
from runner import SliceRunner
from sliced_model import SlicedLM


def build_groups(tp):
    mine = None
    for first in range(0, dist.get_world_size(), tp):
        ranks = list(range(first, first + tp))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="facebook/opt-13b")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--prompts", required=True)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    tp_group = build_groups(args.tp)
    model = SlicedLM.from_pretrained(args.model, tp_group).half().cuda().eval()
    runner = SliceRunner(model, tp_group)
    queue = None
    if runner.is_driver:
        queue = FileQueue(args.prompts, part=dist.get_rank() // args.tp, parts=dist.get_world_size() // args.tp)
    runner.serve(queue)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
