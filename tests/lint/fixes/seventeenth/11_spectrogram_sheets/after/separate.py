import lightning.pytorch as pl
import torch
import torchaudio
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sheets import SpectrogramSheets


class Stems(Dataset):
    def __init__(self, index, seconds=4, rate=44100):
        self.rows = [line.split("\t") for line in open(index).read().splitlines()]
        self.frames, self.rate = seconds * rate, rate

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        mix, _ = torchaudio.load(self.rows[i][0], num_frames=self.frames)
        vocals, _ = torchaudio.load(self.rows[i][1], num_frames=self.frames)
        return mix.mean(0), vocals.mean(0)


class MaskNet(pl.LightningModule):
    def __init__(self, n_fft=2048, hidden=512, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.register_buffer("window", torch.hann_window(n_fft))
        self.rnn = nn.LSTM(n_fft // 2 + 1, hidden, 2, batch_first=True, bidirectional=True)
        self.mask = nn.Linear(2 * hidden, n_fft // 2 + 1)

    def magnitude(self, wave):
        n = self.hparams.n_fft
        return torch.stft(wave, n, n // 4, window=self.window, return_complex=True).abs()

    def forward(self, wave):
        mag = self.magnitude(wave)
        h, _ = self.rnn(mag.transpose(1, 2))
        return mag * torch.sigmoid(self.mask(h)).transpose(1, 2)

    def training_step(self, batch, _):
        mix, vocals = batch
        loss = (self(mix) - self.magnitude(vocals)).abs().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        mix, vocals = batch
        estimate, target = self(mix), self.magnitude(vocals)
        self.log("val_loss", (estimate - target).abs().mean(), sync_dist=True)
        return {"estimate": estimate, "target": target}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=4,
        strategy="ddp",
        max_epochs=200,
        logger=TensorBoardLogger("logs", name="masknet"),
        callbacks=[SpectrogramSheets(), ModelCheckpoint(monitor="val_loss")],
    )
    trainer.fit(
        MaskNet(),
        DataLoader(Stems("train.tsv"), 8, shuffle=True, num_workers=8, drop_last=True),
        DataLoader(Stems("valid.tsv"), 8, num_workers=4),
    )
