import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, callbacks, device):
        self.model = DDP(model.to(device), device_ids=[device.index])
        self.callbacks = callbacks
        self.device = device
        self.should_stop = False

    def validate(self, loader):
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for x, y in loader:
                total += torch.nn.functional.mse_loss(self.model(x.to(self.device)), y.to(self.device)).item()
                count += 1
        return {"val_loss": total / max(count, 1)}

    def fit(self, train_loader, val_loader, optimizer, epochs):
        for epoch in range(epochs):
            self.model.train()
            for x, y in train_loader:
                loss = torch.nn.functional.mse_loss(self.model(x.to(self.device)), y.to(self.device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            metrics = self.validate(val_loader)
            for callback in self.callbacks:
                callback.on_validation_end(self, metrics)
            if self.should_stop:
                break
