import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from run_memory import RunMemory


class Course:
    def __init__(self, net, device, memory: RunMemory, total_steps, save_every=500):
        self.device = device
        self.net = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=2e-4)
        self.memory = memory
        self.total_steps = total_steps
        self.save_every = save_every
        self.step = 0
        self.epoch = 0

    def resume(self, tag):
        state = self.memory.recall(tag)
        if state is not None:
            self.step = state["step"]
            self.epoch = state["epoch"]

    def one_step(self):
        x = torch.randn(32, 128, device=self.device)
        loss = F.l1_loss(self.net(x), x)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def run(self, tag=None):
        self.resume(tag)
        while self.step < self.total_steps:
            self.one_step()
            self.step += 1
            if self.step % self.save_every == 0:
                self.memory.store(f"step_{self.step}", self.step, self.epoch)
