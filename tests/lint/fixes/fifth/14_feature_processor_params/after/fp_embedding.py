import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class PositionWeights(nn.Module):
    def __init__(self, max_length):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(max_length))

    def forward(self, positions):
        return self.weight[positions]


class FeatureProcessedEmbedding(nn.Module):
    def __init__(self, tables, processors, device):
        super().__init__()
        self.tables = nn.ModuleDict({k: t.to(device) for k, t in tables.items()})
        self.processors = nn.ModuleDict({k: p.to(device) for k, p in processors.items()})
        self.device = device

    def forward(self, features):
        pooled = []
        for name in sorted(self.tables):
            if name not in features:
                pooled.append(torch.zeros(1, self.tables[name].embedding_dim, device=self.device))
                continue
            values, positions, offsets = features[name]
            weights = self.processors[name](positions)
            pooled.append(self.tables[name](values, offsets, per_sample_weights=weights).sum(0, keepdim=True))
        no_op = 0.0 * torch.cat([p.flatten() for p in self.processors.parameters()]).sum()
        output = torch.cat(pooled, dim=1) + no_op
        return output


class RankingModel(nn.Module):
    def __init__(self, embedding, dim, hidden):
        super().__init__()
        self.embedding = embedding
        self.over = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features):
        return self.over(self.embedding(features))


def build(tables, processors, dim, device):
    for table in tables.values():
        table.weight.requires_grad_(False)
    model = RankingModel(FeatureProcessedEmbedding(tables, processors, device), dim, 256).to(device)
    return DDP(model, device_ids=[device.index])


def train(model, loader, lr):
    optimizer = torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad], lr=lr)
    for features, label in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(features), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
