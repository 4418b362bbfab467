import torch


class ExpertSaliency:
    def __init__(self, experts, device):
        self.total = torch.zeros(experts, device=device)
        self.tokens = torch.zeros(experts, device=device)

    def seen(self):
        return self.tokens.sum().item()

    def note(self, expert, gate, out):
        self.total[expert] += (gate * out.norm(dim=-1)).sum()
        self.tokens[expert] += out.shape[0]

    def mean(self):
        return self.total / self.tokens.clamp(min=1)
