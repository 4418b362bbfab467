import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def reduce_mean(tensor):
    if not (dist.is_available() and dist.is_initialized()):
        return tensor
    tensor = tensor.clone()
    dist.all_reduce(tensor.div_(dist.get_world_size()), op=dist.ReduceOp.SUM)
    return tensor


def giou_loss(pred, target):
    lt = torch.max(pred[:, :2], target[:, :2])
    rb = torch.min(pred[:, 2:], target[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area = (pred[:, 2:] - pred[:, :2]).prod(1) + (target[:, 2:] - target[:, :2]).prod(1)
    union = area - inter
    outer_lt = torch.min(pred[:, :2], target[:, :2])
    outer_rb = torch.max(pred[:, 2:], target[:, 2:])
    hull = (outer_rb - outer_lt).clamp(min=0).prod(1) + 1e-6
    return 1 - inter / (union + 1e-6) + (hull - union) / hull


class ZeroHead(nn.Module):
    def __init__(self, width, num_classes, box_weight=2.0):
        super().__init__()
        self.num_classes = num_classes
        self.box_weight = box_weight
        self.cls = nn.Conv2d(width, num_classes, 3, padding=1)
        self.reg = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, feat, labels, boxes):
        cls = self.cls(feat).permute(0, 2, 3, 1).reshape(-1, self.num_classes)
        reg = self.reg(feat).permute(0, 2, 3, 1).reshape(-1, 4)
        return self.loss(cls, reg, labels.reshape(-1), boxes.reshape(-1, 4))

    def loss(self, cls, reg, labels, boxes):
        pos_inds = ((labels >= 0) & (labels < self.num_classes)).nonzero().squeeze(1)
        target = torch.zeros_like(cls)
        target[pos_inds, labels[pos_inds]] = 1.0

        num_pos = reduce_mean(torch.tensor(float(pos_inds.numel()), device=cls.device))
        num_pos = num_pos.clamp(min=1.0)
        loss_cls = F.binary_cross_entropy_with_logits(cls, target, reduction="sum") / num_pos

        if pos_inds.numel() > 0:
            weight = cls.detach().sigmoid()[pos_inds].max(dim=1)[0]
            norm_factor = reduce_mean(weight.sum()).clamp(min=1e-4)
            loss_box = (giou_loss(reg[pos_inds], boxes[pos_inds]) * weight).sum()
            loss_box = self.box_weight * loss_box / norm_factor
        else:
            reduce_mean(cls.new_zeros(()))
            loss_box = reg.sum() * 0
        return {"loss_cls": loss_cls, "loss_box": loss_box}
