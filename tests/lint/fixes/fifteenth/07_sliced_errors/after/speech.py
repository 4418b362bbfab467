import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from errors import TokenErrors
from joint import SlicedJoint


class DealtBatches:
    def __init__(self, count, size, rank, world):
        batches = [list(range(s, min(s + size, count))) for s in range(0, count, size)]
        while len(batches) % world:
            batches.append(batches[0])
        self.mine = batches[rank::world]

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


class Speech(pl.LightningModule):
    def __init__(self, slice_size=2, val_batch=16):
        super().__init__()
        self.ears = nn.GRU(80, 256, num_layers=2, batch_first=True)
        self.joint = SlicedJoint(256, 128, slice_size, TokenErrors())
        self.val_batch = val_batch

    def training_step(self, batch, _):
        frames, labels = batch
        loss, _, _ = self.joint(self.ears(frames)[0], labels)
        return loss

    def validation_step(self, batch, _):
        frames, labels = batch
        loss, wrong, length = self.joint(self.ears(frames)[0], labels, score=True)
        self.log("val_loss", loss, sync_dist=True)
        self.log("val_error", wrong / length)

    def speech_set(self, count):
        return TensorDataset(torch.randn(count, 200, 80), torch.randint(0, 128, (count, 30)))

    def train_dataloader(self):
        return DataLoader(self.speech_set(4096), batch_size=16)

    def val_dataloader(self):
        data = self.speech_set(20)
        dealt = DealtBatches(len(data), self.val_batch, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(data, batch_sampler=dealt)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = pl.Trainer(devices=2, strategy="ddp", max_epochs=5, use_distributed_sampler=False)
    trainer.fit(Speech())
