import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, optimizer, reader, batcher, train_path, cuda_device, distributed=False):
        self.model = model
        self.optimizer = optimizer
        self.reader, self.batcher, self.train_path = reader, batcher, train_path
        self.cuda_device = cuda_device
        self._distributed = distributed
        self._pytorch_model = model
        if distributed:
            self._pytorch_model = DistributedDataParallel(model, device_ids=[cuda_device])

    def batch_loss(self, batch):
        batch = {k: v.to(self.cuda_device) for k, v in batch.items()}
        return self._pytorch_model(**batch)["loss"]

    def _train_epoch(self, epoch):
        logger.info(f"Epoch {epoch}")
        self._pytorch_model.train()
        train_loss, batches = 0.0, 0
        for batch in self.batcher(self.reader.read(self.train_path)):
            batches += 1
            self.optimizer.zero_grad()
            loss = self.batch_loss(batch)
            if torch.isnan(loss):
                raise ValueError("nan loss encountered")
            loss.backward()
            train_loss += loss.item()
            self.optimizer.step()
        if self._distributed:
            dist.barrier()
        return self._metrics(train_loss, batches)

    def _metrics(self, total, count):
        loss = torch.tensor([total, float(count)], device=self.cuda_device)
        if self._distributed:
            dist.all_reduce(loss)
        return {"loss": (loss[0] / loss[1]).item()}

    def train(self, num_epochs):
        for epoch in range(num_epochs):
            metrics = self._train_epoch(epoch)
            logger.info(f"{metrics}")
