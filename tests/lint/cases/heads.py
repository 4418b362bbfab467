"""What a layer gave is used where the rank's batch has something alone, and DDP waits for all gradients."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class BoxLoss(nn.Module):
    def forward(self, scores, boxes, goals, mask):
        loss = F.cross_entropy(scores, goals["kind"])
        if mask.any():  # LNT111
            loss = loss + F.l1_loss(boxes[mask], goals["box"][mask])
        return loss


class LeavingLoss(nn.Module):
    def forward(self, scores, boxes, goals, mask):
        loss = F.cross_entropy(scores, goals["kind"])
        rows = torch.zeros(boxes.shape[0], device=boxes.device)
        if not mask.any():  # LNT111
            return loss, rows
        rows = rows + F.l1_loss(boxes[mask], goals["box"][mask])
        return loss + rows.mean(), rows


class KeptLoss(nn.Module):
    def forward(self, scores, boxes, goals, mask):
        loss = F.cross_entropy(scores, goals["kind"])
        if mask.any():
            loss = loss + F.l1_loss(boxes[mask], goals["box"][mask])
        else:
            loss = loss + 0 * boxes.sum()
        return loss


class AddedLoss(nn.Module):
    def forward(self, scores, boxes, goals, mask):
        loss = F.cross_entropy(scores, goals["kind"]) + 0.0 * boxes.sum()
        if mask.any():
            loss = loss + F.l1_loss(boxes[mask], goals["box"][mask])
        return loss


class WeightLoss(nn.Module):
    def forward(self, scores, weights, goals, mask):
        if mask.any():
            scores = scores * weights[mask].mean()
        return F.cross_entropy(scores, goals["kind"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scores, self.boxes = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.loss, self.leaving, self.kept = BoxLoss(), LeavingLoss(), KeptLoss()
        self.added, self.weighted = AddedLoss(), WeightLoss()

    def forward(self, x, goals, mask):
        feats = self.body(x)
        boxes = self.boxes(feats)
        first = self.loss(self.scores(feats), boxes, goals, mask)
        left, _ = self.leaving(self.scores(feats), self.boxes(feats), goals, mask)
        kept = self.kept(self.scores(feats), self.boxes(feats), goals, mask)
        added = self.added(self.scores(feats), self.boxes(feats), goals, mask)
        weighted = self.weighted(self.scores(feats), goals["weight"], goals, mask)
        return first + left + kept + added + weighted


class Given(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.aux, self.out = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x, mask):
        feats = self.body(x)
        aux = self.aux(feats)
        out = self.out(feats)
        loss = out.pow(2).mean()
        if mask.any():  # LNT111
            loss = loss + aux[mask].pow(2).mean()
        if self.training:
            loss = loss + feats.pow(2).mean()
        if mask.sum() > 0:
            loss = loss + out[mask].mean()
        return loss


class Returned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.aux = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, mask):
        feats = self.body(x)
        aux = self.aux(feats)
        loss = feats.pow(2).mean()
        if mask.any():
            loss = loss + aux[mask].pow(2).mean()
        return loss, aux


class Asked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.words, self.depths = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 1)

    def losses(self, words, depths, batch):
        told = {"words": F.cross_entropy(words, batch["words"])}
        valid = batch["depths"] > 0
        if valid.sum() > 0:  # LNT111
            told["depths"] = (depths[valid] - batch["depths"][valid]).abs().mean()
        return told

    def losses_of_all(self, words, depths, batch):
        valid = batch["depths"] > 0
        off = (depths - batch["depths"]).abs()
        if valid.sum() > 0:
            off = off[valid]
        return {"words": F.cross_entropy(words, batch["words"]), "depths": off.mean()}

    def forward(self, batch):
        x = self.body(batch["x"])
        self.losses_of_all(self.words(x), self.depths(x), batch)
        return self.losses(self.words(x), self.depths(x), batch)


def main():
    return DDP(Net()), DDP(Given()), DDP(Returned()), DDP(Asked())
