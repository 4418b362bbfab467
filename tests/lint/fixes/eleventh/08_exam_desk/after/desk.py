import argparse
import importlib
import json
import sys
import traceback

import torch.distributed as dist

from examine import examine
from subjects import Subject


def sit(model, subjects, strict=False):
    results = []
    for subject in subjects:
        try:
            results.append(examine(model, subject))
        except Exception as e:
            if strict:
                raise
            traceback.print_exc()
            print(f"error while examining {subject.name}: {e}, set --strict to stop here")
            results.append(None)
            if dist.get_world_size() > 1:
                dist.destroy_process_group()
                sys.exit(1)
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--subjects", nargs="+", required=True)
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = importlib.import_module(args.model).build()
    results = sit(model, [Subject(path) for path in args.subjects], args.strict)
    if dist.get_rank() == 0:
        print(json.dumps([r for r in results if r], indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
