import torch
import torch.distributed as dist
from torch import nn


class Specialist(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return self.net(x)


class Router(nn.Module):
    def __init__(self, width, seats):
        super().__init__()
        self.seat = nn.Linear(width, seats, bias=False)

    @torch.no_grad()
    def forward(self, x):
        return self.seat(x).argmax(-1)


def share(tensor):
    world = dist.get_world_size()
    whole = tensor.new_empty((world * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(whole, tensor.contiguous())
    return whole
