import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class GIN(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()) for _ in range(4)])
        self.out = nn.Linear(hidden, 2)

    def forward(self, graph, feats):
        for layer in self.layers:
            feats = layer(graph @ feats)
        return self.out(feats.mean(0))


@torch.no_grad()
def evaluate(loader, device, model, evaluator):
    model.eval()
    truth, pred = [], []
    for graph, feats, label in loader:
        truth.append(label)
        pred.append(model(graph.to(device), feats.to(device)).cpu())
    return evaluator.eval({"y_true": truth, "y_pred": pred})


def train(rank, world_size, loaders, evaluator, epochs=100):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12345", world_size=world_size, rank=rank)
    model = DistributedDataParallel(GIN(300).to(rank), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        model.train()
        for graph, feats, label in loaders["train"]:
            loss = nn.functional.cross_entropy(model(graph.to(rank), feats.to(rank)), label.to(rank))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            valid = evaluate(loaders["valid"], rank, model, evaluator)
            print(epoch, valid)
    dist.destroy_process_group()
