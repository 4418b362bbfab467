import torch


class LowRank(torch.nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(rank, base.in_features, dtype=torch.bfloat16) * 0.01)
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, dtype=torch.bfloat16))
        self.gain = torch.nn.Parameter(torch.ones(base.out_features))
        for p in (self.down, self.up, self.gain):
            p.shared_by_experts = True

    def forward(self, x):
        delta = (x.bfloat16() @ self.down.T) @ self.up.T
        return self.base(x) + delta.float() * self.gain
