import torch
import torch.distributed as dist

from keeper import ShardedKeeper, SoloKeeper


class Coach:
    def __init__(self, model, opt, train_loader, val_loader, root, device):
        self.model = model
        self.opt = opt
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.device = device
        self.spread = dist.is_initialized()
        self.keeper = ShardedKeeper(root) if self.spread else SoloKeeper(root)
        self.best = float("inf")

    def scores(self, batch):
        hidden, target = (t.to(self.device) for t in batch)
        guess = self.model(hidden)
        loss = torch.nn.functional.smooth_l1_loss(guess, target)
        close = ((guess - target).abs() < 0.1).float().mean()
        return {"loss": loss, "close": close}

    def train_epoch(self, epoch):
        self.model.train()
        self.train_loader.sampler.set_epoch(epoch)
        for batch in self.train_loader:
            self.scores(batch)["loss"].backward()
            self.opt.step()
            self.opt.zero_grad()

    @torch.no_grad()
    def val_epoch(self):
        self.model.eval()
        sums = {}
        for batch in self.val_loader:
            metrics = self.scores(batch)
            if self.spread:
                for value in metrics.values():
                    dist.reduce(value, dst=0, op=dist.ReduceOp.AVG)
            for key, value in metrics.items():
                sums[key] = sums.get(key, 0.0) + value.item()
        return {f"{key}_epoch": total / len(self.val_loader) for key, total in sums.items()}

    def maybe_save(self, epoch, metrics):
        if metrics["loss_epoch"] >= self.best:
            return
        self.best = metrics["loss_epoch"]
        self.keeper.save(self.model, self.opt, epoch)

    def run(self, epochs):
        for epoch in range(epochs):
            self.train_epoch(epoch)
            metrics = self.val_epoch()
            if not self.spread or dist.get_rank() == 0:
                print(epoch, metrics)
            self.maybe_save(epoch, metrics)
