import torch
import torch.distributed as dist

from text_encoder_loader import encode


class WanModel:
    def __init__(self, cfg, transformer, device):
        self.cfg = cfg
        self.transformer = transformer
        self.device = device
        self.negative_embeds = None
        self.negative_mask = None

    def ensure_negative_conditioning(self):
        if self.negative_embeds is not None:
            return
        embeds, mask = encode(self.cfg.path, self.cfg.negative_prompt, False, self.device)
        self.negative_embeds, self.negative_mask = embeds, mask

    def predict(self, latents, timestep, embeds, guidance):
        self.ensure_negative_conditioning()
        cond = self.transformer(latents, timestep, embeds)
        uncond = self.transformer(latents, timestep, self.negative_embeds)
        return uncond + guidance * (cond - uncond)
