import torch
from torch import nn

from ranks import mean_over_ranks


def centre_target(sides):
    left_right, top_bottom = sides[:, [0, 2]], sides[:, [1, 3]]
    ratio = (left_right.amin(1) / left_right.amax(1)) * (top_bottom.amin(1) / top_bottom.amax(1))
    return ratio.clamp(min=0).sqrt()


def overlap_loss(guess, target, weight):
    small = torch.minimum(guess, target)
    inner = (small[:, 0] + small[:, 2]) * (small[:, 1] + small[:, 3])
    area = lambda s: (s[:, 0] + s[:, 2]) * (s[:, 1] + s[:, 3])
    share = inner / (area(guess) + area(target) - inner + 1e-6)
    return ((1 - share) * weight).sum()


class PointHead(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.classes = classes
        self.kind = nn.Conv2d(width, classes, 3, padding=1)
        self.sides = nn.Conv2d(width, 4, 3, padding=1)
        self.centre = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, maps):
        flat = lambda x, n: x.permute(0, 2, 3, 1).reshape(-1, n)
        return (
            flat(self.kind(maps), self.classes),
            flat(self.sides(maps), 4).exp(),
            flat(self.centre(maps), 1).squeeze(1),
        )

    def loss(self, outs, labels, targets):
        kinds, sides, centres = outs
        labels, targets = labels.flatten(), targets.reshape(-1, 4)
        picked = (labels < self.classes).nonzero().squeeze(1)

        count = torch.tensor(float(len(picked)), device=kinds.device)
        count = max(mean_over_ranks(count), 1.0)
        onehot = nn.functional.one_hot(labels, self.classes + 1)[:, : self.classes].float()
        kind_loss = nn.functional.binary_cross_entropy_with_logits(kinds, onehot, reduction="sum") / count

        pos_sides, pos_centres = sides[picked], centres[picked]
        goal = centre_target(targets[picked])
        weight_sum = max(mean_over_ranks(goal.sum().detach()), 1e-6)
        if len(picked) > 0:
            side_loss = overlap_loss(pos_sides, targets[picked], goal) / weight_sum
            centre_loss = nn.functional.binary_cross_entropy_with_logits(pos_centres, goal, reduction="sum") / count
        else:
            side_loss = pos_sides.sum()
            centre_loss = pos_centres.sum()
        return kind_loss + side_loss + centre_loss
