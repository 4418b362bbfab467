import torch
import torch.distributed as dist
import torch.nn.functional as F


def batch_loss(model, batch, device):
    logits = model(batch["ids"].to(device))
    labels = batch["labels"].to(device)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel()


@torch.no_grad()
def run_exam(model, batches, device):
    model.eval()
    loss_sum = torch.zeros((), device=device)
    tokens = torch.zeros((), device=device)
    odd = torch.zeros((), device=device)
    for batch in batches:
        loss, count = batch_loss(model, batch, device)
        if torch.isfinite(loss):
            loss_sum += loss
            tokens += count
        else:
            odd += 1
    for value in (loss_sum, tokens, odd):
        dist.all_reduce(value)
    model.train()
    return (loss_sum / tokens.clamp(min=1)).item(), int(odd)
