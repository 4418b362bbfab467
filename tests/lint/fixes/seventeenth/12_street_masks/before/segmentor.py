from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torchvision.models.segmentation import fcn_resnet50


class Segmentor(nn.Module):
    def __init__(self, classes, rare_class, ignore=255):
        super().__init__()
        self.net = fcn_resnet50(num_classes=classes, aux_loss=True)
        self.rare_class = rare_class
        self.ignore = ignore

    def losses(self, images, masks):
        out = self.net(images)
        losses = {
            "decode.loss_ce": F.cross_entropy(out["out"], masks, ignore_index=self.ignore),
            "aux.loss_ce": 0.4 * F.cross_entropy(out["aux"], masks, ignore_index=self.ignore),
        }
        pred = out["out"].argmax(1)
        valid = masks != self.ignore
        losses["decode.acc_seg"] = (pred == masks)[valid].float().mean()
        rare = masks == self.rare_class
        if rare.any():
            losses["decode.acc_rare"] = (pred == masks)[rare].float().mean()
        return losses

    def forward(self, images, masks):
        losses = self.losses(images, masks)
        loss, log_vars = self.parse_losses(losses)
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(images)}

    @staticmethod
    def parse_losses(losses):
        log_vars = OrderedDict()
        for name, value in losses.items():
            if isinstance(value, torch.Tensor):
                log_vars[name] = value.mean()
            else:
                log_vars[name] = sum(v.mean() for v in value)
        loss = sum(value for name, value in log_vars.items() if "loss" in name)
        log_vars["loss"] = loss
        for name, value in log_vars.items():
            if dist.is_available() and dist.is_initialized():
                value = value.data.clone()
                dist.all_reduce(value.div_(dist.get_world_size()))
            log_vars[name] = value.item()
        return loss, log_vars
