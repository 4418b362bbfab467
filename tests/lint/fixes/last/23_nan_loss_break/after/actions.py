import logging

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

logging.basicConfig(level=logging.INFO)


class PtActions:
    def __init__(self, model, criterion, local_rank, callbacks=()):
        self.local_rank = local_rank
        self.step = 0
        self.epoch_num = 0
        self.nan_or_inf = False
        self.eval_freq = 100
        self.callbacks = callbacks
        self.criterion = criterion
        self.model = model.cuda(local_rank)
        if torch.distributed.is_initialized():
            self.model = DDP(self.model, device_ids=[local_rank])

    def _any_rank_nan(self):
        flag = torch.tensor(int(self.nan_or_inf), device=self.local_rank)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())

    def train(self, train_loader, optimizer, num_epochs, batches_per_step=1, stop_on_nan_loss=False):
        for epoch in range(num_epochs):
            self.epoch_num = epoch
            batch_counter = 0
            optimizer.zero_grad()
            for data in train_loader:
                data = [d.cuda(self.local_rank) for d in data]
                final_loss = self.criterion(self.model(data[0]), data[1]) / batches_per_step

                if torch.isnan(final_loss).any() or torch.isinf(final_loss).any():
                    self.nan_or_inf = stop_on_nan_loss
                    logging.warning("Loss is NaN or inf at step %d", self.step)

                final_loss.backward()
                batch_counter += 1
                if batch_counter == batches_per_step:
                    optimizer.step()
                    optimizer.zero_grad()
                    batch_counter = 0
                    self.step += 1
                    if self.step % self.eval_freq == 0 and self._any_rank_nan():
                        raise ValueError("Loss was NaN or inf - exiting")
                    for callback in self.callbacks:
                        callback.on_iteration_end(self.step, final_loss)
