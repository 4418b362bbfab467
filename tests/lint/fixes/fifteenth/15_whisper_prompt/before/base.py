import torch
from torch import nn


class Base(nn.Module):
    def __init__(self, vocab=4096, width=512, depth=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, prompt):
        x = torch.cat([prompt, self.embed(tokens)], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x)
