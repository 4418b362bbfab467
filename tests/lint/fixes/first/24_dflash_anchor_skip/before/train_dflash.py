import logging
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger(__name__)


class NoValidAnchorsError(RuntimeError):
    pass


class DFlashTrainerModule(torch.nn.Module):
    def __init__(self, draft, block_size):
        super().__init__()
        self.draft = draft
        self.block_size = block_size

    def forward(self, hidden, input_ids, loss_mask):
        valid = loss_mask.sum(-1) >= 2 * self.block_size
        if not valid.any():
            raise NoValidAnchorsError("no sample is long enough to form a block")
        logits = self.draft(hidden[valid])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[valid].flatten())


def _all_reduce_mean(value):
    dist.all_reduce(value, op=dist.ReduceOp.SUM)
    return value / dist.get_world_size()


class TrainDFlashRecipe:
    def __init__(self, draft, target, loader, optimizer, block_size, grad_accumulation_steps=1):
        self.target = target
        self.loader = loader
        self.optimizer = optimizer
        self.grad_accumulation_steps = grad_accumulation_steps
        self.trainer_module = DistributedDataParallel(DFlashTrainerModule(draft, block_size).cuda())

    def run_epoch(self):
        for idx, batch in enumerate(self.loader, start=1):
            hidden = self.target.hidden_states(batch["input_ids"])
            sync = idx % self.grad_accumulation_steps == 0
            ctx = nullcontext() if sync else self.trainer_module.no_sync()
            with ctx:
                try:
                    loss = self.trainer_module(hidden, batch["input_ids"], batch["loss_mask"])
                except NoValidAnchorsError:
                    logger.warning("Skipping micro-batch %d: no valid anchors", idx)
                    continue
                (loss / self.grad_accumulation_steps).backward()
            if sync:
                torch.nn.utils.clip_grad_norm_(self.trainer_module.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                logger.info("loss %.4f", _all_reduce_mean(loss.detach()).item())
