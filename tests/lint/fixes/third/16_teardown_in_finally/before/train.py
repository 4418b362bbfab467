import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist


def prepare_environment(backend="nccl"):
    dist.init_process_group(backend)
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())


def teardown_environment():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


@dataclass
class ExperimentConfig:
    run_name: str
    max_steps: int = 1000
    load_path: str = ""


class Trainer:
    def __init__(self, cfg, model, optimizer, loader, callbacks):
        self.cfg, self.model, self.optimizer = cfg, model, optimizer
        self.loader, self.callbacks = loader, callbacks

    def fit(self):
        if self.cfg.load_path:
            self.model.load_state_dict(torch.load(self.cfg.load_path))
        for cb in self.callbacks:
            cb.pre_train(self)
        for step, batch in zip(range(self.cfg.max_steps), self.loader):
            self.model(batch).mean().backward()
            self.optimizer.step()


def main(run_name, overrides, build):
    cfg = ExperimentConfig(run_name=run_name, **overrides)
    build(cfg).fit()


def cli(build):
    prepare_environment()
    try:
        main(sys.argv[1], {}, build)
    finally:
        teardown_environment()
