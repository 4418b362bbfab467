import torch
from torch import nn


class Gemma4TextExperts(nn.Module):
    def __init__(self, hidden_size, intermediate_size, num_experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden_size, intermediate_size), nn.GELU(), nn.Linear(intermediate_size, hidden_size))
            for _ in range(num_experts)
        )

    def forward(self, hidden_states):
        shape = hidden_states.shape
        hidden_states = hidden_states.view(-1, shape[-1])
        weights, selected = self.router(hidden_states).softmax(-1).topk(self.top_k, dim=-1)
        out = torch.zeros_like(hidden_states)
        hit = torch.unique(selected)
        for expert_idx in hit.tolist():
            token, slot = torch.where(selected == expert_idx)
            current = self.experts[expert_idx](hidden_states[token])
            out.index_add_(0, token, current * weights[token, slot, None])
        return out.view(shape)
