import sys
from pathlib import Path

import torch.distributed as dist

from cache import RawCache
from loader import WeightLoader


def main():
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    loader = WeightLoader(RawCache(keep_free=16 << 30), group)
    for folder in map(Path, sys.argv[1:]):
        weights = loader.load(folder)
        if dist.get_rank() == 0:
            print(f"{folder.name}: {len(weights)} tensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
