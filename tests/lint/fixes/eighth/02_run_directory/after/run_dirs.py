import json
import os

import torch.distributed as dist


def open_run_dir(root, workload, resume=False):
    if root is None:
        return None
    path = os.path.join(os.path.expanduser(root), workload)
    if dist.get_rank() != 0:
        return None
    if os.path.isdir(path) and not resume:
        path = path + "_next"
    os.makedirs(path, exist_ok=True)
    return path


def dump_json(path, payload):
    with open(path, "w") as handle:
        json.dump(payload, handle, indent=2, default=str)
