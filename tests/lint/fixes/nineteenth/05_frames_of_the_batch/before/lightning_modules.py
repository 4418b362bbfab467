import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedUnits(nn.Module):
    def __init__(self, dim=80, hidden=256, units=100):
        super().__init__()
        self.encoder = nn.GRU(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, units)

    def forward(self, feats):
        hidden, _ = self.encoder(feats)
        return self.head(hidden)


class SpeechPretrainModule(pl.LightningModule):
    def __init__(self, lr=5e-4, clip_norm=10.0):
        super().__init__()
        self.automatic_optimization = False
        self.model = MaskedUnits()
        self.lr = lr
        self.clip_norm = clip_norm

    def _step(self, batch):
        feats, labels, mask = batch
        logits = self.model(feats)
        loss = F.cross_entropy(logits[mask], labels[mask], reduction="sum")
        return loss, mask.sum()

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss, num_frame = self._step(batch)
        if torch.isinf(loss) or torch.isnan(loss):
            opt.zero_grad()
            return None

        num_frame = self.all_gather(num_frame).sum()
        loss = loss * self.trainer.world_size / num_frame
        self.manual_backward(loss)
        self.clip_gradients(opt, gradient_clip_val=self.clip_norm)
        opt.step()
        self.lr_schedulers().step()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr)
        sched = torch.optim.lr_scheduler.LinearLR(opt, total_iters=32000)
        return [opt], [{"scheduler": sched, "interval": "step"}]
