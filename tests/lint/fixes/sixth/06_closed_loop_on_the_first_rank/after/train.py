import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from closed_loop import closed_loop_validate


def train(args, model, loader, scenarios):
    dist.init_process_group("nccl")
    global_rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(args.epochs):
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if global_rank == 0:
            torch.save(model.module.state_dict(), f"{args.save_dir}/latest.pth")
        if (epoch + 1) % args.save_utd == 0:
            closed_loop_validate(model.module, scenarios, global_rank, world_size)
