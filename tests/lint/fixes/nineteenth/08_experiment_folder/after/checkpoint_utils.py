import glob
import os

import torch


def newest(log_dir):
    if log_dir is None:
        return None
    found = glob.glob(os.path.join(log_dir, "checkpoint_*.pt"))
    return max(found, key=os.path.getmtime) if found else None


def maybe_restore(log_dir, model, optimizer):
    path = newest(log_dir)
    if path is None:
        return 0
    state = torch.load(path, map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["global_step"]


def save(log_dir, model, optimizer, global_step):
    torch.save(
        {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "global_step": global_step,
        },
        os.path.join(log_dir, f"checkpoint_{global_step}.pt"),
    )
