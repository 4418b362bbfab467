import logging
import os
import time

import wandb

from util import get_global_rank, synchronize_flag, synchronize_value

log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, cfg, model, optim, loader, device):
        self.cfg, self.model, self.optim = cfg, model, optim
        self.loader, self.device = loader, device
        self.global_step = 0
        self.cur_train_loss = float("inf")
        self.min_train_loss = float("inf")
        self._start_time = time.time()

    def check_if_cancelled(self):
        should_cancel = False
        cancel_reason = None
        extra_steps = 0
        if get_global_rank() == 0:
            if self.cfg.time_limit is not None and time.time() - self._start_time >= self.cfg.time_limit:
                should_cancel = True
                cancel_reason = "time limit reached"
                extra_steps = self.cfg.extra_steps_after_cancel
            elif self.cur_train_loss > self.cfg.early_stopping_factor * self.min_train_loss:
                should_cancel = True
                cancel_reason = "early stopping from loss increase"
            elif wandb.run is not None and os.environ.get("WANDB_API_KEY"):
                run = wandb.Api().run(wandb.run.path)
                if any(tag.lower() in {"cancel", "canceled", "cancelled"} for tag in run.tags or []):
                    should_cancel = True
                    cancel_reason = "Weights & Biases tag"
                    extra_steps = self.cfg.extra_steps_after_cancel

        run_canceled = synchronize_flag(should_cancel, self.device)
        if run_canceled and cancel_reason is not None:
            extra_steps = synchronize_value(extra_steps, self.device)
            if extra_steps > 0:
                log.warning(f"Run canceled due to {cancel_reason}, stopping in {extra_steps} more steps...")
            else:
                log.warning(f"Run canceled due to {cancel_reason}")
        return run_canceled, extra_steps

    def train_step(self, batch):
        self.optim.zero_grad(set_to_none=True)
        loss = self.model(batch.to(self.device)).mean()
        loss.backward()
        self.optim.step()
        self.cur_train_loss = loss.item()
        self.min_train_loss = min(self.min_train_loss, self.cur_train_loss)

    def fit(self):
        stop_at = None
        for batch in self.loader:
            self.global_step += 1
            self.train_step(batch)
            if stop_at is None and self.global_step % self.cfg.canceled_check_interval == 0:
                cancel, extra = self.check_if_cancelled()
                if cancel:
                    stop_at = self.global_step + extra
            if stop_at is not None and self.global_step >= stop_at:
                break
