import logging
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, config):
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        self.config = config
        self.model = FSDP(config["build_model"]().cuda())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config["lr"])
        self.data = iter(config["build_loader"](dist.get_rank(), dist.get_world_size()))
        self.writer = open(f"metrics_{dist.get_rank()}.txt", "w")

    def train(self):
        for step in range(self.config["steps"]):
            inputs, labels = next(self.data)
            pred = self.model(inputs.cuda())
            loss = torch.nn.functional.cross_entropy(pred.flatten(0, 1), labels.cuda().flatten(0, 1))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.writer.write(f"{step} {loss.item()}\n")

    def close(self):
        self.writer.close()


def run(config):
    trainer = None
    try:
        trainer = Trainer(config)
        trainer.train()
    except Exception:
        if trainer:
            trainer.close()
        raise
    else:
        trainer.close()
        dist.destroy_process_group()
        logger.info("Process group destroyed.")
