import torch


@torch.no_grad()
def build_classifier(model, names, device):
    rows = []
    for name in names:
        _, told, _ = model(text=name.to(device))
        rows.append(told.mean(0))
    return torch.stack(rows, 1)


@torch.no_grad()
def zero_shot_eval(model, data, epoch, args, device):
    if "classes" not in data or epoch % args.zero_shot_every:
        return {}
    classifier = build_classifier(model, data["names"], device)
    hits, seen = 0, 0
    for images, labels in data["classes"]:
        feats, _, scale = model(image=images.to(device))
        guess = (scale * feats @ classifier).argmax(1)
        hits += (guess == labels.to(device)).sum().item()
        seen += labels.numel()
    return {"zero_shot_top1": hits / seen}
