import re
from collections import defaultdict

import deepspeed.comm as dist
from deepspeed.utils import safe_get_full_grad
from torch.utils.tensorboard import SummaryWriter


class LayerBoard:
    """Shows the gradient norm of every layer next to loss and learning rate."""

    def __init__(self, folder, every=100, pattern=r"layers\.(\d+)\."):
        self.every = every
        self.pattern = re.compile(pattern)
        self.writer = SummaryWriter(folder) if dist.get_rank() == 0 else None

    def group_of(self, name):
        found = self.pattern.search(name)
        return f"layer{int(found.group(1)):02d}" if found else "rest"

    def layer_norms(self, engine):
        squares = defaultdict(float)
        for name, p in engine.module.named_parameters():
            if not p.requires_grad:
                continue
            grad = safe_get_full_grad(p)
            if grad is not None:
                squares[self.group_of(name)] += grad.float().norm().item() ** 2
        return {group: value ** 0.5 for group, value in squares.items()}

    def after_backward(self, engine, loss):
        step = engine.global_steps
        if step % self.every or not engine.is_gradient_accumulation_boundary():
            return
        if self.writer is None:
            return
        norms = self.layer_norms(engine)
        for group, value in norms.items():
            self.writer.add_scalar(f"grad/{group}", value, step)
        self.writer.add_scalar("loss", loss.item(), step)
        self.writer.add_scalar("lr", engine.get_lr()[0], step)

    def close(self):
        if self.writer is not None:
            self.writer.close()
