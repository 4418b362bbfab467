import hashlib
import pathlib

import torch
import torch.distributed as dist

from block_store import BlockStore
from meta_client import MetaClient


class FileMover:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def save(self, uris, pages):
        for uri, page in zip(uris, pages):
            target = self.root / str(dist.get_rank()) / uri
            target.parent.mkdir(parents=True, exist_ok=True)
            torch.save(page, target)
        return True


def main(turns=100):
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    store = BlockStore(MetaClient("http://127.0.0.1:8810"), FileMover("/tmp/pages"), group, "decode-0")
    for turn in range(turns):
        hidden = torch.full((4, 16, 64), float(turn))
        dist.all_reduce(hidden, group=group)
        keys = [hashlib.sha256(f"{turn}-{i}".encode()).hexdigest() for i in range(4)]
        done = store.put(keys, list(hidden))
        if dist.get_rank() == 0:
            print(turn, sum(done), "blocks kept")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
