"""What a trainer of Lightning keeps of what modules log, as a callback asks for it: reduced, or this rank's own."""

import lightning as L
import torch.nn.functional as F


class Forecast(L.LightningModule):
    def training_step(self, batch, _):
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))
        self.log("val_mae", F.l1_loss(self(batch[0]), batch[1]), sync_dist=True)


class KeepsBest(L.Callback):
    def __init__(self, monitor="val_loss"):
        self.monitor = monitor
        self.best = float("inf")

    def on_validation_end(self, trainer, pl_module):
        score = float(trainer.callback_metrics[self.monitor])
        if score < self.best:
            self.best = score
            trainer.save_checkpoint("best.ckpt")  # LNT107


class KeepsBestOfAll(L.Callback):
    def __init__(self, monitor="val_loss"):
        self.monitor = monitor
        self.best = float("inf")

    def on_validation_end(self, trainer, pl_module):
        score = float(trainer.callback_metrics[self.monitor])
        if score < self.best:
            self.best = score
            trainer.save_checkpoint("best.ckpt")


class Plateau(L.Callback):
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def on_validation_epoch_end(self, trainer, pl_module):
        value = float(trainer.callback_metrics["val_loss"])
        if value < self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            trainer.should_stop = True  # LNT108


class PlateauOfAll(L.Callback):
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def on_validation_epoch_end(self, trainer, pl_module):
        value = float(trainer.callback_metrics.get("val_mae"))
        if value < self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            trainer.should_stop = True


class Told(L.Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        over = float(trainer.callback_metrics["val_loss"]) > 3
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(over, all=False)


def main(train, val):
    callbacks = [KeepsBest(), KeepsBestOfAll("val_mae"), Plateau(3), PlateauOfAll(3), Told()]
    L.Trainer(devices=2, strategy="ddp", callbacks=callbacks).fit(Forecast(), train, val)
