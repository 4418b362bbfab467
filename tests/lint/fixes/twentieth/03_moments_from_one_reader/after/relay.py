"""Hand a full optimizer file from one reader to all ranks."""
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Shape:
    size: tuple
    dtype: torch.dtype


class OptimizerRelay:
    def __init__(self, mesh, device):
        self.shard_group = mesh["shard"].get_group()
        self.rank = dist.get_rank(self.shard_group)
        self.device = device

    def outline(self, state, group=None):
        note = [None]
        if dist.get_rank(group) == 0:
            note[0] = {
                name: {k: Shape(tuple(v.shape), v.dtype) for k, v in slots.items()}
                for name, slots in state.items()
            }
        dist.broadcast_object_list(note, src=0, group=group)
        return state if dist.get_rank(group) == 0 else note[0]

    def fill(self, slots, group=None):
        out = {}
        for key, value in slots.items():
            if isinstance(value, Shape):
                tensor = torch.empty(value.size, dtype=value.dtype, device=self.device)
            else:
                tensor = value.to(self.device)
            dist.broadcast(tensor, src=0, group=group)
            out[key] = self.keep_my_part(tensor)
        return out

    def keep_my_part(self, tensor):
        if tensor.dim() == 0:
            return tensor.cpu()
        parts = dist.get_world_size(self.shard_group)
        return torch.tensor_split(tensor.flatten(), parts)[dist.get_rank(self.shard_group)].clone()

    def load(self, path):
        state = {}
        if dist.get_rank() == 0:
            state = torch.load(path, map_location="cpu")["state"]
        state = self.outline(state)
        return {name: self.fill(slots) for name, slots in state.items()}
