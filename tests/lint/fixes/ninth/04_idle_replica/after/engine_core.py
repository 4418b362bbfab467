import torch
import torch.distributed as dist

from model_runner import ModelRunner, StepPlan


class EngineCore:
    def __init__(self, model, config, inbox, group):
        self.runner = ModelRunner(model, config, group)
        self.inbox = inbox
        self.group = group
        self.live = {}

    def _admit(self):
        while not self.inbox.empty():
            rid, token, budget = self.inbox.get()
            self.live[rid] = [token, budget]

    def _plan(self):
        return StepPlan([state[0] for state in self.live.values()])

    def _apply(self, sampled):
        for rid, token in zip(list(self.live), sampled):
            state = self.live[rid]
            state[0] = token
            state[1] -= 1
            if state[1] == 0:
                del self.live[rid]

    def _others_busy(self):
        flag = torch.tensor([int(bool(self.live))], device="cuda")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag.item())

    def run_wave(self):
        while True:
            self._admit()
            self._apply(self.runner.execute(self._plan()))
            if not self._others_busy():
                return
