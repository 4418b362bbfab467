import torch
import torch.nn as nn
import torch.nn.functional as F


class Rotary(nn.Module):
    def __init__(self, dim, base, device):
        super().__init__()
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", base ** (-steps / dim), persistent=False)

    def forward(self, x):
        pos = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        angle = torch.outer(pos, self.inv_freq)
        angle = torch.cat([angle, angle], dim=-1).to(x.dtype)
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * angle.cos() + turned * angle.sin()


class DraftBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.rotary = None
        self.norm = nn.LayerNorm(cfg.hidden_size)
        self.qkv = nn.Linear(cfg.hidden_size, 3 * cfg.hidden_size)
        self.out = nn.Linear(cfg.hidden_size, cfg.hidden_size)

    def _make_rotary(self, device):
        if self.rotary is None:
            self.rotary = Rotary(self.cfg.hidden_size, self.cfg.rope_theta, device)

    def forward(self, hidden):
        self._make_rotary(hidden.device)
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, dim=-1)
        q, k = self.rotary(q), self.rotary(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return hidden + self.out(mixed)


class BlockDrafter(nn.Module):
    def __init__(self, base, cfg):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.cfg = cfg
        self.draft = DraftBlock(cfg)

    def pick_anchors(self, loss_mask):
        window = loss_mask.unfold(1, self.cfg.block_size, 1)
        return window.all(dim=-1)

    def forward(self, input_ids, loss_mask):
        with torch.no_grad():
            out = self.base(input_ids, output_hidden_states=True)
        hidden = out.hidden_states[-1]
        anchors = self.pick_anchors(loss_mask)
        if not anchors.any():
            return sum(p.sum() for p in self.draft.parameters()) * 0.0
        drafted = self.base.lm_head(self.draft(hidden))
        keep = F.pad(anchors, (0, self.cfg.block_size - 1))
        target = out.logits.softmax(-1)[keep]
        return -(target * drafted[keep].log_softmax(-1)).sum(-1).mean()
