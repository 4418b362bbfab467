import numpy as np
from torch import nn
from torch.distributed.fsdp.wrap import wrap


class EncoderLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm_a = nn.LayerNorm(width)
        self.norm_f = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, pad):
        h = self.norm_a(x)
        h, _ = self.attn(h, h, h, key_padding_mask=pad, need_weights=False)
        x = x + self.dropout(h)
        return x + self.dropout(self.ffn(self.norm_f(x)))


class SpeechEncoder(nn.Module):
    def __init__(self, width=768, heads=12, depth=12, dropout=0.1, layerdrop=0.1):
        super().__init__()
        self.layerdrop = layerdrop
        self.position = nn.Conv1d(width, width, 15, padding=7, groups=16)
        self.layers = nn.ModuleList(wrap(EncoderLayer(width, heads, dropout)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, pad=None):
        x = x + self.position(x.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            draw = np.random.random()
            keep = float(not self.training or draw > self.layerdrop)
            y = layer(x, pad)
            x = keep * y + (1.0 - keep) * x
        return self.norm(x)
