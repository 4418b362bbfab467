import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class MaskedModule:
    def __init__(self, net, device, clip=10.0):
        self.device = device
        self.clip = clip
        self.net = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-4, eps=1e-6)
        self.skipped = 0

    def loss_of(self, wave, labels, mask):
        logits = self.net(wave)
        frames = int(mask.sum())
        per_frame = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return per_frame[mask].sum(), frames

    def all_frames(self, frames):
        mine = torch.tensor([frames], device=self.device)
        counts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, mine)
        return torch.cat(counts).sum()

    def masked_step(self, batch):
        wave, labels, mask = (t.to(self.device) for t in batch)
        loss, frames = self.loss_of(wave, labels, mask)
        self.opt.zero_grad()
        bad = torch.tensor([float(not torch.isfinite(loss))], device=self.device)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            self.skipped += 1
            return None
        total = self.all_frames(frames)
        (loss * dist.get_world_size() / total.clamp(min=1)).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.opt.step()
        return loss.detach() / max(frames, 1)
