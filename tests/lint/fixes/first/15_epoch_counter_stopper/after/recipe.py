import torch

from brain import Brain
from distributed import run_on_main


class EpochCounterWithStopper:
    def __init__(self, limit, limit_to_stop, limit_warmup=0):
        self.current = 0
        self.limit = limit
        self.limit_to_stop = limit_to_stop
        self.limit_warmup = limit_warmup
        self.best_limit = 0
        self.best = float("inf")

    def __iter__(self):
        return self

    def __next__(self):
        if self.current >= self.limit:
            raise StopIteration
        self.current += 1
        return self.current

    def should_stop(self, current, current_metric):
        if current > self.limit_warmup and current_metric < self.best:
            self.best_limit, self.best = current, current_metric
        return current - self.best_limit >= self.limit_to_stop


class G2PBrain(Brain):
    epoch_counter = None

    def compute_loss(self, batch):
        feats, targets = (t.to(self.device) for t in batch)
        return torch.nn.functional.cross_entropy(self.model(feats), targets)

    def on_stage_end(self, stage, loss, epoch):
        if stage == "valid":
            run_on_main(torch.save, args=[self.model.module.state_dict(), f"epoch_{epoch}.ckpt"])
            if self.epoch_counter.should_stop(current=epoch, current_metric=loss):
                self.epoch_counter.current = self.epoch_counter.limit
