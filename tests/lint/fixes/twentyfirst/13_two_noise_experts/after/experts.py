import torch
import torch.nn as nn
from diffusers import WanTransformer3DModel
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class NoiseExperts(nn.Module):
    """A model for the noisy and one for the nearly clean end of the schedule."""

    def __init__(self, path, boundary):
        super().__init__()
        self.boundary = boundary
        self.high = WanTransformer3DModel.from_pretrained(path, subfolder="transformer")
        self.low = WanTransformer3DModel.from_pretrained(path, subfolder="transformer_2")

    def span(self, name):
        return (self.boundary, 1.0) if name == "high" else (0.0, self.boundary)

    def shard(self, mesh):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for expert in (self.high, self.low):
            for block in expert.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy)
            fully_shard(expert, mesh=mesh, mp_policy=policy)
        return self

    def forward(self, name, latents, sigma, text):
        expert = getattr(self, name)
        return expert(hidden_states=latents, timestep=sigma * 1000, encoder_hidden_states=text).sample
