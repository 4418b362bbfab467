import csv
import json
from pathlib import Path

from lightning.pytorch.callbacks import Callback


class EpochTable(Callback):
    def __init__(self, path, columns=("epoch", "train/loss", "val/loss", "lr")):
        self.path = Path(path)
        self.columns = list(columns)
        self.started = False

    def _start(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "w", newline="") as f:
            csv.DictWriter(f, fieldnames=self.columns).writeheader()
        self.started = True

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            if not self.started:
                self._start()
            metrics = trainer.callback_metrics
            row = {"epoch": trainer.current_epoch}
            for name in self.columns[1:]:
                value = metrics.get(name)
                row[name] = value.item() if value is not None else None
            with open(self.path, "a", newline="") as f:
                csv.DictWriter(f, fieldnames=self.columns).writerow(row)
        trainer.strategy.barrier()


class SocketReporter(Callback):
    def __init__(self, socket, job):
        self.socket = socket
        self.job = job

    def _send(self, event, **fields):
        self.socket.send_string(json.dumps({"job": self.job, "event": event, **fields}))

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            logs = trainer.callback_metrics
            loss = logs.get("train/loss")
            self._send("epoch_end", epoch=trainer.current_epoch,
                       loss=loss.item() if loss is not None else None)
        trainer.strategy.barrier()
