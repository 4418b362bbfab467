import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Fit:
    def __init__(self, net, pool, device, epochs, check_from=0.5, check_every=200):
        self.net = DDP(net)
        self.pool = pool
        self.device = device
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.num_steps = self._plan(epochs)
        self.check_start = int(self.num_steps * check_from)
        self.check_every = check_every

    def _plan(self, epochs):
        per_epoch = self.pool.steps_per_epoch()
        return int(per_epoch * epochs)

    @torch.no_grad()
    def check(self):
        x, y = self.pool.next_batch(self.device)
        err = (self.net.module(x) - y).abs()
        total = torch.stack([err.sum(), torch.full_like(err.sum(), err.numel())])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def run(self):
        for step in range(self.num_steps):
            x, y = self.pool.next_batch(self.device)
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step >= self.check_start and (step - self.check_start) % self.check_every == 0:
                mae = self.check()
                if dist.get_rank() == 0:
                    print(f"step {step}: mae {mae:.4f}")
