import json

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_padded(tensor, group=None):
    world = dist.get_world_size(group)
    length = torch.tensor([tensor.size(0)], device=tensor.device)
    lengths = [torch.zeros_like(length) for _ in range(world)]
    dist.all_gather(lengths, length, group=group)
    lengths = [int(n.item()) for n in lengths]
    longest = max(lengths)
    if longest == 0:
        return tensor
    padded = F.pad(tensor, (0, 0, 0, longest - tensor.size(0)))
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([p[:n] for p, n in zip(parts, lengths)])


def evaluate(model, dataset, device, out_path):
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    inner = getattr(model, "module", model)
    records, features = [], []
    with torch.no_grad():
        for index in range(rank, len(dataset), world):
            item = dataset[index]
            if item is None:
                continue
            out = inner(item["x"].to(device)[None])
            records.append({"index": index, "label": item["y"], "guess": out.argmax(-1).item()})
            features.append(out)
    width = inner.num_classes
    local = torch.cat(features) if features else torch.zeros(0, width, device=device)
    everything = gather_padded(local)

    gathered = [None] * world if rank == 0 else None
    dist.gather_object(records, gathered, dst=0)
    accuracy = [0.0]
    if rank == 0:
        merged = sorted((r for part in gathered for r in part), key=lambda r: r["index"])
        accuracy[0] = sum(r["label"] == r["guess"] for r in merged) / max(1, len(merged))
        with open(out_path, "w") as f:
            json.dump(merged, f)
    dist.broadcast_object_list(accuracy, src=0)
    model.train()
    return accuracy[0], everything.mean(0)


def maybe_save_best(model, accuracy, best, path):
    if accuracy <= best:
        return best
    if dist.get_rank() == 0:
        torch.save(getattr(model, "module", model).state_dict(), path)
    dist.barrier()
    return accuracy


def loop(model, train_epoch, dataset, device, epochs, folder):
    best = 0.0
    for epoch in range(epochs):
        train_epoch(epoch)
        accuracy, _ = evaluate(model, dataset, device, f"{folder}/eval-{epoch}.json")
        best = maybe_save_best(model, accuracy, best, f"{folder}/best.pt")
    return best
