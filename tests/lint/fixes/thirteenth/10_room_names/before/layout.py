import torch
import torch.distributed as dist

from rooms import Rooms


class Layout:
    """A head start group, then rows and columns of a grid of ranks."""

    def __init__(self, rooms: Rooms, rows, columns, head):
        world = rows * columns
        self.head = rooms.split([list(range(head))])
        self.row = rooms.split([list(range(r * columns, (r + 1) * columns)) for r in range(rows)])
        self.column = rooms.split([list(range(c, world, columns)) for c in range(columns)])

    def total(self, value, device):
        out = torch.tensor([value], device=device)
        if self.head is not None:
            dist.all_reduce(out.clone(), group=self.head)
        dist.all_reduce(out, group=self.row)
        dist.all_reduce(out, group=self.column)
        return out.item()
