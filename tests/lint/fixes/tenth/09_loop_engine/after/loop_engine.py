import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class LoopEngine:
    def __init__(self, net, loader, device, callbacks=()):
        self.device = device
        self.net = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.loader = loader
        self.callbacks = callbacks
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=3e-4)
        self.batch_no = 0

    def _batches(self):
        source = iter(self.loader)
        while True:
            try:
                batch = next(source)
            except StopIteration:
                batch = None
            ended = torch.tensor([int(batch is None)], device=self.device)
            dist.all_reduce(ended, op=dist.ReduceOp.MAX)
            if ended.item():
                break
            yield batch.to(self.device)

    def _step(self, batch):
        logits = self.net(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        return loss.detach()

    def _end_epoch(self, epoch, total, count):
        stats = torch.stack([total, count])
        dist.all_reduce(stats)
        for call in self.callbacks:
            call(epoch, (stats[0] / stats[1]).item())

    def fit(self, epochs):
        for epoch in range(epochs):
            total = torch.zeros((), device=self.device)
            count = torch.zeros((), device=self.device)
            for batch in self._batches():
                total += self._step(batch)
                count += 1
                self.batch_no += 1
            self._end_epoch(epoch, total, count)
