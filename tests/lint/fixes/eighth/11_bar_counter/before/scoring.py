import torch


@torch.no_grad()
def score(accelerator, model, loader):
    model.eval()
    right = seen = 0
    for features, labels in loader:
        guess = model(features).argmax(dim=-1)
        guess, labels = accelerator.gather_for_metrics((guess, labels))
        right += (guess == labels).sum().item()
        seen += labels.numel()
    model.train()
    return right / max(seen, 1)
