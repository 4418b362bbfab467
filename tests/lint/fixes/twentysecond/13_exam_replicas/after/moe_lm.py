import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ExpertBlock(nn.Module):
    def __init__(self, width, experts, state):
        super().__init__()
        self.group, self.ep = state.ep_group, state.ep_size
        self.local = experts // self.ep
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(self.local)
        )

    def _exchange(self, x, send, recv):
        out = x.new_empty(sum(recv), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), recv, send, group=self.group)
        return out

    def forward(self, h):
        shape = h.shape
        h = h.reshape(-1, shape[-1])
        prob, chosen = self.router(h).softmax(-1).max(-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen // self.local, minlength=self.ep)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        send, recv = counts.tolist(), arriving.tolist()
        x = self._exchange(h[order], send, recv)
        which = self._exchange(chosen[order] % self.local, send, recv)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y[which == i] = expert(x[which == i])
        back = torch.empty_like(h)
        back[order] = self._exchange(y, recv, send)
        return (back * prob.unsqueeze(-1)).reshape(shape)


class MoELM(nn.Module):
    def __init__(self, vocab, width, layers, experts, state):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mix = nn.ModuleList(nn.GRU(width, width, batch_first=True) for _ in range(layers))
        self.moe = nn.ModuleList(ExpertBlock(width, experts, state) for _ in range(layers))

    def forward(self, ids):
        h = self.embed(ids)
        for mix, moe in zip(self.mix, self.moe):
            h = h + mix(h)[0]
            h = h + moe(F.layer_norm(h, h.shape[-1:]))
        return h @ self.embed.weight.t()
