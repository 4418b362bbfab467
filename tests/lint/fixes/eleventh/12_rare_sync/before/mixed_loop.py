import torch
import torch.nn.functional as F

from rare_sync import RareSyncAdamW


class MixedLoop:
    def __init__(self, net, device):
        self.net = net.to(device)
        self.device = device
        self.opt = RareSyncAdamW(self.net.parameters(), lr=3e-4)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)

    def round(self, batch):
        x, y = (t.to(self.device) for t in batch)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.sync_if_needed()
        return loss.item()
