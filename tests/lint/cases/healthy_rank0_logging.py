import logging

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger(__name__)


class MetricLogger:
    def __init__(self, run_name, interval):
        self.rank = dist.get_rank()
        self.interval = interval
        self.values = {}
        self.run = wandb.init(name=run_name) if self.rank == 0 else None

    def update(self, **values):
        for name, value in values.items():
            self.values.setdefault(name, []).append(value.detach())

    def flush(self, step):
        names = sorted(self.values)
        means = torch.stack([torch.stack(self.values[n]).mean() for n in names])
        self.values.clear()
        dist.reduce(means, dst=0, op=dist.ReduceOp.SUM)
        if self.rank != 0:
            return
        means /= dist.get_world_size()
        row = dict(zip(names, means.tolist()))
        self.run.log(row, step=step)
        logger.info("step %d %s", step, row)

    def close(self):
        if self.run is not None:
            self.run.finish()


def train(cfg, model, loader):
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    model = DDP(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    meter = MetricLogger(cfg.name, cfg.log_every)
    for step, batch in enumerate(loader):
        loss = model(batch.to(device)).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        meter.update(loss=loss, grad_norm=norm)
        if step % cfg.log_every == 0:
            meter.flush(step)
        if step + 1 == cfg.max_steps:
            break
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), cfg.output)
    meter.close()
    dist.barrier()
    dist.destroy_process_group()
