import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from token_crates import pack


class Policy:
    def __init__(self, net, device, limit=4096):
        self.device = device
        self.limit = limit
        self.net = FSDP(net.to(device), device_id=device, use_orig_params=True)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-6)

    def update(self, batch):
        self.net.train()
        self.opt.zero_grad()
        crates = pack(batch, self.limit, self.device)
        for crate in crates:
            logits = self.net(crate["ids"])
            loss = F.cross_entropy(
                logits[:, :-1].flatten(0, 1), crate["ids"][:, 1:].flatten(), reduction="none"
            )
            weight = crate["mask"][:, 1:].flatten().float()
            ((loss * weight).sum() / weight.sum().clamp(min=1) / len(crates)).backward()
        self.net.clip_grad_norm_(1.0)
        self.opt.step()
