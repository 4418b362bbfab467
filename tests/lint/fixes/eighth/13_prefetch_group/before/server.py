import argparse
import os

import torch
import torch.distributed as dist

from host_cache import HostCache
from layout import Layout


class DiskIndex:
    def __init__(self, root):
        self.root = root
        os.makedirs(root, exist_ok=True)

    def hits(self, key):
        path = os.path.join(self.root, str(key))
        return int(open(path).read()) if os.path.exists(path) else 0

    def put(self, key, pages):
        with open(os.path.join(self.root, str(key)), "w") as handle:
            handle.write(str(pages))
        return pages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--storage", default=None)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layout = Layout(args.tp, args.pp)
    storage = DiskIndex(f"{args.storage}/{dist.get_rank()}") if args.storage else None
    cache = HostCache(layout, storage)
    hidden = torch.ones(1024, device="cuda")
    for request in range(64):
        dist.all_reduce(hidden, group=layout.tp_group)
        hidden /= args.tp
        if storage is not None:
            cache.prefetch(request)
            cache.backup(request, 256)
    cache.jobs.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
