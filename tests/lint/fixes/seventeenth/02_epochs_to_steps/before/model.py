from torch import nn


class EnergyNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.energy = nn.Linear(width, 1)
        self.force = nn.Linear(width, 1)

    def forward(self, coord):
        delta = coord[:, :, None, :] - coord[:, None, :, :]
        dist2 = delta.square().sum(-1, keepdim=True)
        feature = self.pair(dist2)
        energy = self.energy(feature).sum(dim=(1, 2, 3))
        force = (self.force(feature) * delta).sum(dim=2)
        return energy, force
