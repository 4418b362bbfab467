import torch
import torch.distributed as dist
import torch.nn as nn


def true_on_any(flag, device):
    box = torch.tensor([float(flag)], device=device)
    if dist.is_initialized():
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return box.item() > 0


class GripPolicy(nn.Module):
    def __init__(self, pixels=3072, words=64, dim=256, actions=7):
        super().__init__()
        self.see = nn.Linear(pixels, dim)
        self.read = nn.Linear(words, dim)
        self.act = nn.Sequential(nn.ReLU(), nn.Linear(dim, actions))

    def features(self, obs):
        device = self.see.weight.device
        image = obs["image"].to(device)
        x = self.see(image)
        hint = obs.get("subtask")
        if true_on_any(hint is not None, device):
            if hint is None:
                x = x + 0.0 * self.read(image.new_zeros(image.shape[0], 64))
            else:
                x = x + self.read(hint.to(device))
        return x

    def forward(self, obs, actions):
        return (self.act(self.features(obs)) - actions).square().mean()

    @torch.no_grad()
    def choose(self, obs):
        return self.act(self.features(obs))
