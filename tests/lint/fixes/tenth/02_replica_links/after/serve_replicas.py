import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from batch_manager import BatchManager


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(1000, 256)
        self.up = torch.nn.Linear(256, 1024)
        self.down = torch.nn.Linear(1024, 1000)

    def forward(self, ids):
        return self.down(torch.relu(self.up(self.emb(ids))))


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = dist.get_world_size() // per_node
    mesh = init_device_mesh("cuda", (nodes, per_node), mesh_dim_names=("copy", "shard"))
    model = parallelize_module(
        Tiny().cuda(), mesh["shard"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    manager = BatchManager(model, mesh.get_group("shard"))
    if manager.links.is_leader:
        for _ in range(64):
            manager.submit(torch.randint(0, 1000, (20,)))
        manager.closing = True
    manager.serve()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
