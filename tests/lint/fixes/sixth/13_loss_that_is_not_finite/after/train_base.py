import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TrainBase:
    def __init__(self, model, optimizer, manager, log):
        self.manager = manager
        self.log = log
        self.optimizer = optimizer
        if manager.world_size > 1:
            model = DistributedDataParallel(model, device_ids=[manager.local_rank])
        self.model = model

    def _iter_batches(self, dataset):
        yield from dataset.batches(self.manager.rank, self.manager.world_size)

    def _all_finite(self, loss):
        flag = torch.isfinite(loss).all().int()
        if self.manager.world_size > 1:
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag.item())

    def train_epoch(self, dataset, epoch):
        total = 0.0
        for inputs, target in self._iter_batches(dataset):
            loss = torch.nn.functional.mse_loss(self.model(inputs), target)
            if not self._all_finite(loss):
                self.log.warning("epoch %d: the loss is not finite, batch skipped", epoch)
                continue
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total
