from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class BaseSegmentor(nn.Module):
    def train_step(self, data):
        losses = self(**data)
        loss, log_vars = self._parse_losses(losses)
        return dict(loss=loss, log_vars=log_vars, num_samples=len(data["img"]))

    @staticmethod
    def _parse_losses(losses):
        log_vars = OrderedDict()
        for name, value in losses.items():
            if isinstance(value, torch.Tensor):
                log_vars[name] = value.mean()
            else:
                log_vars[name] = sum(item.mean() for item in value)

        loss = sum(value for name, value in log_vars.items() if "loss" in name)
        log_vars["loss"] = loss
        if dist.is_available() and dist.is_initialized():
            length = torch.tensor(len(log_vars), device=loss.device)
            dist.all_reduce(length)
            message = f"rank {dist.get_rank()} log_vars: {list(log_vars)}"
            assert length == len(log_vars) * dist.get_world_size(), message
        for name, value in log_vars.items():
            if dist.is_available() and dist.is_initialized():
                value = value.data.clone()
                dist.all_reduce(value.div_(dist.get_world_size()))
            log_vars[name] = value.item()
        return loss, log_vars


class RegionSegmentor(BaseSegmentor):
    def __init__(self, classes=19, width=64, ignore=255):
        super().__init__()
        self.ignore = ignore
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.pixel = nn.Conv2d(width, classes, 1)
        self.edge = nn.Conv2d(width, 1, 1)

    def forward(self, img, mask):
        feat = torch.relu(self.stem(img))
        logits = self.pixel(feat)
        losses = {
            "loss_pixel": F.cross_entropy(logits, mask, ignore_index=self.ignore),
            "loss_edge": self.edge(feat).abs().mean(),
        }
        known = mask != self.ignore
        rare = known & (mask >= 11)
        if rare.any():
            losses["acc_rare"] = (logits.argmax(1)[rare] == mask[rare]).float().mean()
        return losses
