import torch
import torch.distributed as dist


def average(values, group):
    names = sorted(values)
    packed = torch.stack([values[name] for name in names])
    dist.all_reduce(packed, op=dist.ReduceOp.AVG, group=group)
    return dict(zip(names, packed.tolist()))


def mismatch(replay, device):
    counts = torch.tensor(replay.pop(), dtype=torch.float64, device=device)
    dist.all_reduce(counts)
    off, seen = counts.tolist()
    return off / seen if seen else 0.0


def log_step(step, averages, checked, lr):
    line = {f"train/{name}": value for name, value in averages.items()}
    line["train/lr"] = lr
    if checked is not None:
        line["check/mismatch"] = checked
    print(step, line, flush=True)
