import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class StopControl:
    def __init__(self, device, time_limit, stop_file):
        self.device = device
        self.deadline = time.time() + time_limit
        self.stop_file = stop_file
        self.got_signal = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, signum, frame):
        self.got_signal = True

    def local_wish(self):
        if self.got_signal:
            return 1
        if dist.get_rank() == 0 and (time.time() > self.deadline or os.path.exists(self.stop_file)):
            return 1
        return 0

    def agreed(self):
        flag = torch.tensor(self.local_wish(), device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def loss_is_usable(loss):
    bad = (~torch.isfinite(loss.detach())).to(torch.int32)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bad.item() == 0


def choose_lr(device, candidates, probe):
    choice = torch.zeros(1, dtype=torch.long, device=device)
    if dist.get_rank() == 0:
        choice.fill_(min(range(len(candidates)), key=lambda i: probe(candidates[i])))
    dist.broadcast(choice, src=0)
    return candidates[choice.item()]


def fit(model, loader, device, cfg, probe):
    model = FSDP(model, device_id=device)
    lr = choose_lr(device, cfg.candidates, probe)
    if lr > cfg.warm_above:
        dist.barrier()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    control = StopControl(device, cfg.time_limit, cfg.stop_file)
    skipped = 0
    for step in range(cfg.max_steps):
        batch = next(loader).to(device)
        loss = model(batch).mean()
        if not loss_is_usable(loss):
            skipped += 1
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if control.agreed():
            break
    if dist.get_rank() == 0:
        print(f"stopped after {step + 1} steps, {skipped} skipped")
    return model
