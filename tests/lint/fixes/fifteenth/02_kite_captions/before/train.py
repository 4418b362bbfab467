import torch
import torch.nn.functional as F

from zero_shot import zero_shot_eval


def pair_loss(seen, told, scale):
    logits = scale * seen @ told.t()
    labels = torch.arange(len(seen), device=seen.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def train_one_epoch(model, data, opt, device):
    model.train()
    for images, texts in data["train"]:
        loss = pair_loss(*model(images.to(device), texts.to(device)))
        opt.zero_grad()
        loss.backward()
        opt.step()


def evaluate(model, data, epoch, args, device):
    if args.rank != 0:
        return {}
    model.eval()
    metrics = {}
    metrics.update(zero_shot_eval(model, data, epoch, args, device))

    if "val" in data and epoch % args.val_every == 0:
        if args.distributed:
            model = model.module
        total, count = 0.0, 0
        with torch.no_grad():
            for images, texts in data["val"]:
                loss = pair_loss(*model(images.to(device), texts.to(device)))
                total += loss.item() * len(images)
                count += len(images)
        metrics["val_loss"] = total / count
    print(epoch, metrics)
    return metrics
