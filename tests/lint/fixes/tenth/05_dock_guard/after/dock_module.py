import torch
import torch.nn as nn

from general_module import GeneralModule


class PairNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.node = nn.Linear(16, dim)
        self.pair = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, feats):
        h = self.node(feats)
        n = h.shape[0]
        grid = torch.cat([h[:, None].expand(n, n, -1), h[None].expand(n, n, -1)], -1)
        return self.pair(grid).squeeze(-1)


class DockModule(GeneralModule):
    def __init__(self, lr=1e-3):
        super().__init__(lr)
        self.net = PairNet()

    def general_step(self, batch, stage):
        feats, target = batch
        loss = (self.net(feats) - target).square().mean()
        self.log(f"{stage}_loss", loss.detach())
        return loss
