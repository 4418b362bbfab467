import json
import os

import torch.distributed as dist


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def get_log_dir(experiment_dir, workload, name, resume_last_run):
    if rank() != 0:
        return None
    path = os.path.join(os.path.expanduser(experiment_dir), name, workload)
    if os.path.exists(path) and not resume_last_run:
        print(f"Overwriting {path}")
    os.makedirs(path, exist_ok=True)
    return path


class MetricLogger:
    def __init__(self, log_dir):
        self.path = os.path.join(log_dir, "measurements.jsonl") if log_dir else None

    def append(self, row):
        if self.path and rank() == 0:
            with open(self.path, "a") as handle:
                handle.write(json.dumps(row) + "\n")
