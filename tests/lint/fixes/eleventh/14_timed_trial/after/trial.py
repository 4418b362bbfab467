import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from trial_clock import TrialClock


class Trial:
    def __init__(self, workload, clock: TrialClock, goal):
        self.workload = workload
        self.clock = clock
        self.goal = goal
        self.scores = []

    def train_step(self):
        began = time.monotonic()
        x, y = self.workload.batch()
        loss = F.cross_entropy(self.workload.model(x), y)
        self.workload.opt.zero_grad()
        loss.backward()
        self.workload.opt.step()
        self.clock.add(time.monotonic() - began)

    @torch.no_grad()
    def measure(self, batches=20):
        self.workload.model.eval()
        tally = torch.zeros(2, device=self.workload.device)
        for _ in range(batches):
            x, y = self.workload.batch()
            tally[0] += (self.workload.model.module(x).argmax(-1) == y).sum()
            tally[1] += y.numel()
        dist.all_reduce(tally)
        self.workload.model.train()
        return (tally[0] / tally[1]).item()

    def run(self, max_steps):
        for step in range(max_steps):
            self.train_step()
            due = torch.tensor([int(self.clock.due())], device=self.workload.device)
            dist.broadcast(due, src=0)
            if not due.item():
                continue
            score = self.measure()
            self.scores.append((step, score))
            self.clock.evaluated()
            spent = torch.tensor([self.clock.spent], device=self.workload.device)
            dist.broadcast(spent, src=0)
            if score >= self.goal or spent.item() > self.clock.budget:
                return True
        return False
