import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F


def seq_to_head(t, cp_size, group):
    s_local, heads, dim = t.shape
    assert heads % cp_size == 0
    local = heads // cp_size
    t = t.reshape(s_local, cp_size, local, dim).transpose(0, 1).contiguous()
    out = dist_nn.all_to_all_single(torch.empty_like(t), t, group=group)
    return out.reshape(cp_size * s_local, local, dim)


def head_to_seq(t, cp_size, group):
    s_global, local, dim = t.shape
    assert s_global % cp_size == 0
    t = t.reshape(cp_size, s_global // cp_size, local, dim).contiguous()
    out = dist_nn.all_to_all_single(torch.empty_like(t), t, group=group)
    return out.transpose(0, 1).reshape(s_global // cp_size, local * cp_size, dim)


class UlyssesAttention(torch.nn.Module):
    def __init__(self, dim, heads, group):
        super().__init__()
        self.heads = heads
        self.group = group
        self.qkv = torch.nn.Linear(dim, 3 * dim, bias=False)
        self.out = torch.nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        cp_size = dist.get_world_size(self.group)
        s, d = x.shape
        q, k, v = self.qkv(x).view(s, 3, self.heads, d // self.heads).unbind(1)
        q, k, v = (seq_to_head(t, cp_size, self.group).transpose(0, 1) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        y = head_to_seq(y.transpose(0, 1), cp_size, self.group)
        return self.out(y.reshape(s, d))
