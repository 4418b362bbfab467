import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

log = logging.getLogger("pretrain")


@dataclass
class TrainConfig:
    save_folder: str = "runs/vlm"
    allow_resume: bool = True
    max_steps: int = 10000
    save_interval: int = 1000
    lr: float = 1e-4


class Trainer:
    def __init__(self, cfg, model, optim):
        self.cfg, self.model, self.optim = cfg, model, optim
        self.step = 0

    def latest(self) -> Optional[Path]:
        found = sorted(Path(self.cfg.save_folder).glob("step*.pt"))
        return found[-1] if found else None

    def restore(self, path):
        state = torch.load(path, map_location="cpu", weights_only=False)
        set_state_dict(
            self.model,
            self.optim,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
            options=StateDictOptions(full_state_dict=True),
        )
        self.step = state["step"]
        dist.barrier()

    def save(self):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, moments = get_state_dict(self.model, self.optim, options=options)
        if dist.get_rank() == 0:
            target = Path(self.cfg.save_folder) / f"step{self.step:08d}.pt"
            torch.save({"model": weights, "optim": moments, "step": self.step}, target)
        dist.barrier()

    def fit(self, device):
        while self.step < self.cfg.max_steps:
            x = torch.randn(8, 512, device=device)
            loss = (self.model(x) - x).pow(2).mean()
            loss.backward()
            self.optim.step()
            self.optim.zero_grad(set_to_none=True)
            self.step += 1
            if self.step % self.cfg.save_interval == 0:
                self.save()


def main(cfg):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    os.makedirs(cfg.save_folder, exist_ok=True)

    model = FSDP(nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).to(device))
    optim = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    trainer = Trainer(cfg, model, optim)

    if dist.get_rank() == 0:
        log.info("Configuration:")
        log.info(cfg)

    if cfg.allow_resume:
        checkpoint = trainer.latest()
        if checkpoint is not None:
            log.info("Resuming from %s", checkpoint)
            trainer.restore(checkpoint)

    dist.barrier()
    trainer.fit(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--save_folder", default="runs/vlm")
    args = parser.parse_args()
    main(TrainConfig(save_folder=args.save_folder))
