from collections import defaultdict

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F


def reduce_sum(value):
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
    return value


def area_counts(pred, label, classes, ignore=255):
    keep = label != ignore
    pred, label = pred[keep], label[keep]
    hits = torch.bincount(label[pred == label], minlength=classes)
    area_p = torch.bincount(pred, minlength=classes)
    area_l = torch.bincount(label, minlength=classes)
    return torch.stack([hits, area_p + area_l - hits, area_l]).double()


class PanopticModule(pl.LightningModule):
    def __init__(self, net, classes, dataset_names, lr=1e-4):
        super().__init__()
        self.net = net
        self.classes = classes
        self.dataset_names = dataset_names
        self.lr = lr
        self.outputs = defaultdict(list)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch["image"]), batch["label"], ignore_index=255)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_validation_epoch_start(self):
        self.outputs.clear()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pred = self.net(batch["image"]).argmax(dim=1)
        self.outputs[dataloader_idx].append(area_counts(pred, batch["label"], self.classes))

    def on_validation_epoch_end(self):
        if not self.outputs:
            return
        combined = torch.zeros(3, self.classes, dtype=torch.float64, device=self.device)
        for index in sorted(self.outputs):
            total = torch.zeros_like(combined)
            for counts in self.outputs[index]:
                total += counts
            total = reduce_sum(total)
            combined += total
            self._publish(self.dataset_names[index], total)
        self._publish("all", combined)

    def _publish(self, name, total):
        hits, union, label = total
        seen = union > 0
        miou = (hits[seen] / union[seen]).mean() if seen.any() else hits.sum()
        acc = hits.sum() / label.sum().clamp(min=1)
        self.log(f"{name}/mIoU", miou.float(), rank_zero_only=True)
        self.log(f"{name}/acc", acc.float(), rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
