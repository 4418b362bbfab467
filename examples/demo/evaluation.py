"""Measures the model on the test set and prints the result."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

Metrics = dict[str, float]


@torch.no_grad()
def evaluate(model: nn.Module, batches: DataLoader, epoch: int) -> Metrics:
    """Evaluates this rank's part of the test set."""
    model.eval()
    loss, correct, count = 0.0, 0, 0
    for points, labels in batches:
        logits = model(points)
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    metrics = {"loss": loss / count, "accuracy": correct / count}
    report(metrics, epoch)
    return metrics


def report(metrics: Metrics, epoch: int) -> None:
    """Prints the metrics once, not once per rank."""
    if dist.get_rank() == 0:
        print(f"epoch {epoch} done      {describe(metrics)}", flush=True)


def describe(metrics: Metrics) -> str:
    """The metrics in one line, averaged over the ranks."""
    return "  ".join(f"{name} {value:.3f}" for name, value in reduce_metrics(metrics).items())


def reduce_metrics(metrics: Metrics) -> Metrics:
    """The mean of each metric over all ranks."""
    values = torch.tensor(list(metrics.values()))
    dist.all_reduce(values)
    values /= dist.get_world_size()
    return dict(zip(metrics, values.tolist(), strict=True))
