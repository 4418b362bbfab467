import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoELayer(nn.Module):
    """One expert per rank, top-1 routing with a fixed capacity."""

    def __init__(self, dim, hidden, capacity_factor=1.25, group=None):
        super().__init__()
        self.group = group
        self.num_experts = dist.get_world_size(group)
        self.capacity_factor = capacity_factor
        self.gate = nn.Linear(dim, self.num_experts, bias=False)
        self.expert = Expert(dim, hidden)

    def _dispatch(self, x, expert_ids, capacity):
        buffer = x.new_zeros(self.num_experts, capacity, x.size(-1))
        slots = x.new_full((x.size(0),), -1, dtype=torch.long)
        for e in range(self.num_experts):
            picked = (expert_ids == e).nonzero(as_tuple=True)[0][:capacity]
            buffer[e, : picked.numel()] = x[picked]
            slots[picked] = torch.arange(picked.numel(), device=x.device) + e * capacity
        return buffer, slots

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        scores = F.softmax(self.gate(x), dim=-1)
        weight, expert_ids = scores.max(dim=-1)
        capacity = int(self.capacity_factor * x.size(0) / self.num_experts) + 1
        buffer, slots = self._dispatch(x, expert_ids, capacity)
        received = torch.empty_like(buffer)
        dist.all_to_all_single(received, buffer, group=self.group)
        done = self.expert(received)
        returned = torch.empty_like(done)
        dist.all_to_all_single(returned, done, group=self.group)
        flat = returned.reshape(-1, shape[-1])
        out = torch.where(slots.unsqueeze(-1) >= 0, flat[slots.clamp(min=0)], x)
        return (out * weight.unsqueeze(-1)).reshape(shape)
