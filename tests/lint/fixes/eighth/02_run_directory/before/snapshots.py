import os

import torch
import torch.distributed as dist


def write_snapshot(model, optimizer, step, evals, directory):
    target = os.path.join(directory, "snapshot.pt")
    if dist.get_rank() == 0:
        blob = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "evals": tuple(evals),
        }
        torch.save(blob, target)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"wrote {target} at step {step}")
