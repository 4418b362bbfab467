import json
import logging
import os

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class Recipe:
    def __init__(self, cfg, model, optimizer, checkpointer):
        self.cfg = cfg
        self.model = model
        self.optimizer = optimizer
        self.checkpointer = checkpointer

    def _update_latest(self, path):
        link = os.path.join(self.cfg.checkpoint_dir, "LATEST")
        if os.path.islink(link):
            os.remove(link)
        os.symlink(os.path.basename(path), link)

    def _coordinator_step(self, action, description):
        problem = None
        if dist.get_rank() == 0:
            try:
                action()
            except Exception as e:
                logger.exception("could not %s", description)
                problem = e
        failed = torch.tensor(int(problem is not None), device="cuda")
        dist.all_reduce(failed, op=dist.ReduceOp.MAX)
        if failed.item():
            raise RuntimeError(f"rank 0 could not {description}") from problem

    def _reserve(self, path):
        if os.path.exists(path):
            raise FileExistsError(f"Checkpoint directory {path} already exists")
        os.makedirs(path)

    def save_checkpoint(self, epoch, step, losses):
        if not self.checkpointer.enabled:
            return
        self.checkpointer.async_wait()
        path = os.path.join(self.cfg.checkpoint_dir, f"epoch_{epoch}_step_{step}")
        if dist.get_rank() == 0:
            self._reserve(path)
            logger.info("Saving checkpoint to %s", path)
        if dist.get_rank() == 0:
            try:
                with open(os.path.join(path, "losses.json"), "w") as f:
                    json.dump(losses, f)
            except (TypeError, ValueError, OSError):
                logger.warning("no loss metadata in %s", path, exc_info=True)
        dist.barrier()
        self.checkpointer.save_model(self.model, path)
        self.checkpointer.save_optimizer(self.optimizer, self.model, path)
        dist.barrier()
        self._coordinator_step(lambda: self._update_latest(path), "update LATEST")
