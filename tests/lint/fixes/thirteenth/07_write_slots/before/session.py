import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from slots import WriteSlots


class Session:
    def __init__(self, net, device, slots: WriteSlots, save_every=50):
        self.net = DDP(net.to(device))
        self.device = device
        self.slots = slots
        self.save_every = save_every
        self.failed_saves = 0
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def _save(self, step):
        try:
            self.slots.save("model", self.net.module.state_dict(), step)
        except OSError as err:
            self.failed_saves += 1
            print(f"step {step}: the last save failed: {err}")

    def run(self, steps):
        for step in range(1, steps + 1):
            x = torch.randn(32, 128, device=self.device)
            loss = self.net(x).square().mean()
            loss.backward()
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            if step % self.save_every == 0:
                self._save(step)
