import torch
import torch.distributed as dist


def average(values, group):
    names = sorted(values)
    packed = torch.stack([values[name] for name in names])
    dist.all_reduce(packed, op=dist.ReduceOp.AVG, group=group)
    return dict(zip(names, packed.tolist()))


def log_step(step, averages, replay, lr, device):
    line = {f"train/{name}": value for name, value in averages.items()}
    line["train/lr"] = lr
    if replay.enabled:
        counts = torch.tensor(replay.pop(), dtype=torch.float64, device=device)
        dist.all_reduce(counts)
        off, seen = counts.tolist()
        line["check/mismatch"] = off / seen if seen else 0.0
    print(step, line, flush=True)
