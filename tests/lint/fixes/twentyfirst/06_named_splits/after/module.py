from collections import defaultdict

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import OneFormerForUniversalSegmentation


def overlap_counts(pred, label, classes, ignore):
    keep = label != ignore
    pred, label = pred[keep], label[keep]
    hit = torch.bincount(pred[pred == label], minlength=classes)
    area_pred = torch.bincount(pred, minlength=classes)
    area_label = torch.bincount(label, minlength=classes)
    return torch.stack([hit, area_pred + area_label - hit]).float()


class StreetSegmenter(L.LightningModule):
    def __init__(self, checkpoint, classes, split_names, ignore=255, lr=1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = OneFormerForUniversalSegmentation.from_pretrained(checkpoint)
        self.classes = classes
        self.split_names = split_names
        self.ignore = ignore
        self.lr = lr
        self.outputs = defaultdict(list)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05)

    def training_step(self, batch, batch_idx):
        out = self.net(**batch["inputs"])
        self.log("train/loss", out.loss, prog_bar=True)
        return out.loss

    def predict_map(self, batch):
        out = self.net(**batch["inputs"])
        logits = out.class_queries_logits.softmax(-1)[..., :-1]
        masks = out.masks_queries_logits.sigmoid()
        scores = torch.einsum("bqc,bqhw->bchw", logits, masks)
        scores = F.interpolate(scores, batch["label"].shape[-2:], mode="bilinear")
        return scores.argmax(1)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pred = self.predict_map(batch)
        counts = overlap_counts(pred, batch["label"], self.classes, self.ignore)
        self.outputs[dataloader_idx].append(counts)

    def on_validation_epoch_end(self):
        report = {}
        for index in range(len(self.split_names)):
            parts = self.outputs.get(index, [])
            total = torch.zeros(2, self.classes, device=self.device)
            for part in parts:
                total += part
            if dist.is_initialized():
                dist.all_reduce(total)
            seen = total[1] > 0
            score = (total[0][seen] / total[1][seen]).mean() if seen.any() else total.new_zeros(())
            report[f"val/{self.split_names[index]}/miou"] = score
        self.outputs.clear()
        self.log_dict(report, rank_zero_only=True)
