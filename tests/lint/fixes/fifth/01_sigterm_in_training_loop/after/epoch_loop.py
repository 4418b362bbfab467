import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from signals import StopRequested


class EpochLoop:
    def __init__(self, module, optimizer, watcher, device, callbacks):
        self.model = DDP(module.to(device), device_ids=[device.index])
        self.optimizer = optimizer
        self.watcher = watcher
        self.device = device
        self.callbacks = callbacks
        self.batches_done = 0

    def agreed_stop(self):
        flag = torch.tensor([int(self.watcher.received_sigterm)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag.item() == 1

    def advance(self, batches):
        batch, target = next(batches)
        loss = torch.nn.functional.cross_entropy(self.model(batch.to(self.device)), target.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.batches_done += 1

    def on_advance_end(self):
        for callback in self.callbacks:
            callback.on_batch_end(self)
        if self.agreed_stop():
            raise StopRequested

    def run(self, loader, max_steps):
        batches = iter(loader)
        while self.batches_done < max_steps:
            self.advance(batches)
            self.on_advance_end()
