import torch
from torch.distributed.tensor import DTensor


class ShadowWeights:
    """Exponential average of sharded weights, one shard per rank."""

    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.model = model
        self.local = {name: p.to_local().detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            self.local[name].lerp_(p.to_local(), 1.0 - self.decay)

    def full_state(self):
        full = {}
        for name, p in self.model.named_parameters():
            shard = DTensor.from_local(
                self.local[name], p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
            )
            full[name] = shard.full_tensor().cpu()
        return full
