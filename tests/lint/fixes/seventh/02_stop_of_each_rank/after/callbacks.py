import torch
import torch.distributed as dist


class EarlyStopping:
    def __init__(self, monitor="val_loss", patience=3, min_delta=0.0):
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.wait_count = 0
        self.best_score = float("inf")

    def on_validation_end(self, trainer, metrics):
        current = metrics[self.monitor]
        if current < self.best_score - self.min_delta:
            self.best_score = current
            self.wait_count = 0
        else:
            self.wait_count += 1
            if self.wait_count >= self.patience:
                trainer.should_stop = True
        self._stop_together(trainer)

    def _stop_together(self, trainer):
        stop = torch.tensor(int(trainer.should_stop), device=trainer.device)
        dist.all_reduce(stop)
        trainer.should_stop = bool(stop.item())
