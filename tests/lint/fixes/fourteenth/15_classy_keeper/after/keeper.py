import os

import torch
import torch.distributed as dist


def is_first():
    return dist.get_rank() == 0


def keep(out, model, epoch, error, best):
    weights = model.state_dict()
    if not is_first():
        return None
    folder = os.path.join(out, "kept")
    os.makedirs(folder, exist_ok=True)
    record = {
        "epoch": epoch,
        "model": weights,
    }
    target = os.path.join(folder, f"{epoch:04d}.pth")
    torch.save(record, target)
    if error <= best:
        torch.save(record["model"], os.path.join(out, "best.pth"))
    return target
