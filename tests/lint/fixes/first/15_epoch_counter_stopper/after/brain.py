import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP



class Brain:
    def __init__(self, model, optimizer, device):
        self.model = DDP(model.to(device), device_ids=[device])
        self.optimizer = optimizer
        self.device = device

    def compute_loss(self, batch):
        raise NotImplementedError

    def on_stage_end(self, stage, loss, epoch):
        pass

    def fit_batch(self, batch):
        loss = self.compute_loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def fit(self, epoch_counter, train_set, valid_set):
        for epoch in epoch_counter:
            train_set.sampler.set_epoch(epoch)
            self.model.train()
            for batch in train_set:
                self.fit_batch(batch)

            self.model.eval()
            total = 0.0
            with torch.no_grad():
                for batch in valid_set:
                    total += self.compute_loss(batch).item()
            mean = torch.tensor(total / max(len(valid_set), 1), device=self.device)
            dist.all_reduce(mean)
            avg_valid_loss = mean.item() / dist.get_world_size()
            self.on_stage_end("valid", avg_valid_loss, epoch)
