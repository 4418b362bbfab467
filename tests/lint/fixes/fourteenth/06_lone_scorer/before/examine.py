import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


def make_scores(classes, device):
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes=classes),
            "f1": MulticlassF1Score(num_classes=classes, average="macro"),
        }
    ).to(device)


@torch.no_grad()
def examine(model, loader, scores, device):
    model.eval()
    for x, y in loader:
        scores.update(model(x.to(device)), y.to(device))
    report = scores.compute()
    scores.reset()
    model.train()
    return {k: v.item() for k, v in report.items()}
