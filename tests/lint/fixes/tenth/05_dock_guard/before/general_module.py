import pytorch_lightning as pl
import torch


def is_memory_error(err):
    return "out of memory" in str(err)


class GeneralModule(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.skipped = 0
        self.seen = 0

    def general_step(self, batch, stage):
        raise NotImplementedError

    def training_step(self, batch, batch_idx):
        self.seen += 1
        return self.guarded(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self.general_step(batch, "val")

    def guarded(self, batch, stage):
        loss = None
        try:
            loss = self.general_step(batch, stage)
        except RuntimeError as err:
            if not is_memory_error(err):
                raise
            self.skipped += 1
            print(f"batch {self.seen}: out of memory, {self.skipped} skipped so far")
            for p in self.parameters():
                p.grad = None
            torch.cuda.empty_cache()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
