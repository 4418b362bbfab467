import torch
import torch.distributed as dist

from model import sample_anchor_positions


class Trainer:
    def __init__(self, model, optimizer, block_size):
        self.model = model
        self.optimizer = optimizer
        self.block_size = block_size

    def loss_of(self, batch):
        anchors, keep = sample_anchor_positions(batch["loss_mask"], self.block_size, 64)
        losses = self.model(batch["hidden"], anchors) * keep
        tokens = keep.sum().clamp(min=1).to(losses.device)
        dist.all_reduce(tokens)
        return losses.sum() / tokens

    def train(self, loader, log):
        for batch in loader:
            loss = self.loss_of(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
