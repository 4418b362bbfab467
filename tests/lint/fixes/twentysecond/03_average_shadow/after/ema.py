import torch
from torch.distributed.tensor import DTensor, distribute_tensor


class WeightAverage:
    """Exponential moving average of the weights, one shard per rank, on the host."""

    def __init__(self, model, decay=0.9999, warmup=2000):
        self.decay = decay
        self.warmup = warmup
        self.num_updates = 0
        self.shadow = {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                self.shadow[name] = self._local(p).detach().float().cpu().clone()

    @staticmethod
    def _local(p):
        return p.to_local() if isinstance(p, DTensor) else p

    def _rate(self):
        return min(self.decay, (1 + self.num_updates) / (self.warmup + self.num_updates))

    @torch.no_grad()
    def update(self, model):
        self.num_updates += 1
        rate = self._rate()
        for name, p in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].lerp_(self._local(p).detach().float().cpu(), 1.0 - rate)

    @torch.no_grad()
    def swap(self, model):
        for name, p in model.named_parameters():
            if name in self.shadow:
                local = self._local(p)
                kept = local.detach().float().cpu().clone()
                local.copy_(self.shadow[name])
                self.shadow[name] = kept

    @torch.no_grad()
    def state_dict(self, model):
        out = {}
        for name, p in model.named_parameters():
            if name not in self.shadow:
                continue
            value = self.shadow[name]
            if isinstance(p, DTensor):
                value = DTensor.from_local(
                    value.to(p.device),
                    p.device_mesh,
                    p.placements,
                    shape=p.shape,
                    stride=p.stride(),
                ).full_tensor().cpu()
            out[name] = value
        return {"shadow": out, "num_updates": self.num_updates, "decay": self.decay}

    @torch.no_grad()
    def load_state_dict(self, state, model):
        self.num_updates = state["num_updates"]
        self.decay = state["decay"]
        for name, p in model.named_parameters():
            if name in state["shadow"]:
                value = state["shadow"][name]
                if isinstance(p, DTensor):
                    value = distribute_tensor(value.to(p.device), p.device_mesh, p.placements).to_local()
                self.shadow[name] = value.float().cpu().clone()
