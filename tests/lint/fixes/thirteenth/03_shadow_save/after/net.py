import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Forecast(nn.Module):
    def __init__(self, channels=10, width=96):
        super().__init__()
        self.encode = nn.Linear(channels, width)
        self.mix = nn.Linear(width, width)
        self.decode = nn.Linear(width, channels)

    def forward(self, x):
        return self.decode(self.mix(self.encode(x).relu()).relu())


def sharded_forecast(mesh, device):
    net = Forecast().to(device)
    for part in (net.encode, net.mix, net.decode):
        fully_shard(part, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net
