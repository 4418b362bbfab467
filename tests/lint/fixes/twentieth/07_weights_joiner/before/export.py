import argparse
import json
import logging
import os
import shutil

import torch.distributed as dist

from merge import merge_on_every_rank


def load_plan(path):
    with open(path) as handle:
        plan = json.load(handle)
    return {key: int(number) for key, number in plan["weights"].items()}


def write_index(target, key_to_file):
    total = max(key_to_file.values())
    names = {k: f"model-{n:05d}-of-{total:05d}.safetensors" for k, n in key_to_file.items()}
    with open(os.path.join(target, "model.safetensors.index.json"), "w") as handle:
        json.dump({"weight_map": names}, handle, indent=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    os.makedirs(args.target, exist_ok=True)
    plan = load_plan(os.path.join(args.source, "plan.json"))
    merge_on_every_rank(args.source, args.target, plan, args.threads)
    if dist.get_rank() == 0:
        write_index(args.target, plan)
        shutil.copy(os.path.join(args.source, "config.json"), args.target)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
