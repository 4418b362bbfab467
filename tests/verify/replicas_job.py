"""A small DDP training that knows nothing of unhang; with --drift rank 1 changes a weight by itself, --part: the model is wrapped over some ranks."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([r]) for r in range(dist.get_world_size())]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
ddp = DistributedDataParallel(model, process_group=alone[rank] if "--part" in sys.argv else None)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
for step in range(30):
    optimizer.zero_grad()
    (ddp(torch.ones(2, 4)) - 1).square().mean().backward()
    optimizer.step()
    if "--drift" in sys.argv and step == 12 and rank == 1:
        with torch.no_grad():
            model.weight[0, 0] += 1e-3
dist.barrier()
del ddp
dist.destroy_process_group()
