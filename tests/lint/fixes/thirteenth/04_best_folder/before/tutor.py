import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Tutor:
    def __init__(self, model, keeper, device, rounds):
        self.model = DDP(model.to(device))
        self.keeper = keeper
        self.device = device
        self.rounds = rounds
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def _batch(self):
        x = torch.randn(64, 20, device=self.device)
        return x, x[:, :1] * 2

    @torch.no_grad()
    def score(self):
        x, y = self._batch()
        loss = (self.model.module(x) - y).square().mean()
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def learn(self):
        for step in range(1, self.rounds + 1):
            x, y = self._batch()
            self.opt.zero_grad()
            (self.model(x) - y).square().mean().backward()
            self.opt.step()
            if step % 100 == 0 or step == self.rounds:
                self.keeper.rate(self.score(), step)
                self.keeper.keep(self.model.module, step)
        if self.keeper.best_folder is not None:
            self.keeper.load_best(self.model.module)
        return self.score()
