import logging

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

logging.basicConfig(level=logging.INFO)


class PtActions:
    def __init__(self, model, criterion, local_rank, callbacks=()):
        self.local_rank = local_rank
        self.step = 0
        self.epoch_num = 0
        self.callbacks = callbacks
        self.criterion = criterion
        self.model = model.cuda(local_rank)
        if torch.distributed.is_initialized():
            self.model = DDP(self.model, device_ids=[local_rank])

    def train(self, train_loader, optimizer, num_epochs, batches_per_step=1, stop_on_nan_loss=False):
        for epoch in range(num_epochs):
            self.epoch_num = epoch
            batch_counter = 0
            optimizer.zero_grad()
            for data in train_loader:
                nan = False
                data = [d.cuda(self.local_rank) for d in data]
                final_loss = self.criterion(self.model(data[0]), data[1]) / batches_per_step

                if torch.isnan(final_loss).any() or torch.isinf(final_loss).any():
                    if stop_on_nan_loss:
                        raise ValueError("Loss is NaN or inf - exiting")
                    logging.warning("Loss is NaN or inf")
                    optimizer.zero_grad()
                    nan = True
                    batch_counter = 0
                    continue

                final_loss.backward()
                batch_counter += 1
                if batch_counter == batches_per_step and not nan:
                    optimizer.step()
                    optimizer.zero_grad()
                    batch_counter = 0
                    self.step += 1
                    for callback in self.callbacks:
                        callback.on_iteration_end(self.step, final_loss)
