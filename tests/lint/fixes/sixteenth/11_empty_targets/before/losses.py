import torch
from torch import nn


class GridLoss(nn.Module):
    def assign(self, shape, batch, device):
        rows = shape[-2], shape[-1]
        hit = torch.zeros(shape[0], *rows, dtype=torch.bool, device=device)
        goal = torch.zeros(shape[0], 4, *rows, device=device)
        kind = torch.zeros(shape[0], *rows, dtype=torch.long, device=device)
        for image, label, box in zip(batch["where"], batch["label"], batch["box"]):
            y, x = int(box[1] * rows[0]), int(box[0] * rows[1])
            hit[image, y, x] = True
            kind[image, y, x] = label
            goal[image, :, y, x] = box.to(device)
        return hit, kind, goal

    def forward(self, scores, boxes, batch):
        hit, kind, goal = self.assign(scores.shape, batch, scores.device)
        wanted = nn.functional.one_hot(kind, scores.size(1)).permute(0, 3, 1, 2) * hit[:, None]
        items = torch.zeros(2, device=scores.device)
        items[1] = nn.functional.binary_cross_entropy_with_logits(scores, wanted.float())
        if hit.any():
            where = hit[:, None].expand_as(boxes)
            items[0] = nn.functional.smooth_l1_loss(boxes[where], goal[where])
        return items.sum(), items.detach()
