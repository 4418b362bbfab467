import torch
from torch import nn


class SlicedJoint(nn.Module):
    def __init__(self, width, vocab, slice_size, errors):
        super().__init__()
        self.out = nn.Linear(width, vocab)
        self.slice_size = slice_size
        self.errors = errors

    def slice_loss(self, frames, labels):
        logits = self.out(frames)
        pooled = logits[:, : labels.shape[1]]
        return logits, nn.functional.cross_entropy(pooled.flatten(0, 1), labels.flatten(), reduction="sum")

    def forward(self, frames, labels, score=False):
        losses, wrong, length = [], 0.0, 0.0
        for start in range(0, len(frames), self.slice_size):
            part = slice(start, start + self.slice_size)
            logits, loss = self.slice_loss(frames[part], labels[part])
            losses.append(loss)
            if score:
                guesses = logits.argmax(-1)[:, : labels.shape[1]].tolist()
                self.errors.update(guesses, labels[part].tolist())
                _, part_wrong, part_length = self.errors.compute()
                self.errors.reset()
                wrong += part_wrong
                length += part_length
        loss = torch.stack(losses).sum() / labels.numel()
        return loss, wrong, length
