from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from profiling import maybe_enable_profiling


def main(config, model, loader):
    dist.init_process_group("nccl", timeout=timedelta(seconds=config.train_timeout_seconds))
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = FSDP(model.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    with maybe_enable_profiling(config) as prof:
        for step, batch in enumerate(loader, 1):
            loss = model(batch.cuda()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % config.log_freq == 0:
                dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
            if prof:
                prof.step()
            if step >= config.steps:
                break
    dist.destroy_process_group()
