import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from shards import shard_list


class Actor:
    def __init__(self, model, device):
        self.device = device
        self.model = model.to(device)
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def forward_backward(self, samples):
        shard = shard_list(samples, dist.get_rank(), dist.get_world_size())
        if not shard:
            return {"loss": 0.0, "count": 0}
        x = torch.tensor([s["x"] for s in shard], device=self.device)
        y = torch.tensor([s["y"] for s in shard], device=self.device)
        loss = F.cross_entropy(self.model(x), y, reduction="sum") / len(samples)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return {"loss": total.item(), "count": len(shard)}

    def step(self):
        self.opt.step()
        self.opt.zero_grad()
