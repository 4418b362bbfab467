from collections import defaultdict

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object


class PolicyLoop:
    def __init__(self, model, optimizer, loader, rewards, sampler):
        self.accelerator = Accelerator()
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.rewards = rewards
        self.sampler = sampler
        self.history = defaultdict(list)
        self.columns = defaultdict(list)
        self._notes = defaultdict(list)
        self._extra = defaultdict(list)

    def note(self, name, value):
        self._notes[name].append(float(value))

    def extra(self, column, values):
        self._extra[column].extend(values)

    def _flush(self):
        for column in sorted(self._extra):
            self.columns[column].extend(gather_object(self._extra[column]))
        self._extra.clear()
        for name in sorted(self._notes):
            values = self._notes[name]
            mine = torch.tensor([sum(values), float(len(values))], device=self.accelerator.device)
            total, count = self.accelerator.gather(mine[None]).sum(0).tolist()
            self.history[name].append(total / max(count, 1.0))
        self._notes.clear()

    def _advantages(self, scores):
        everyone = self.accelerator.gather(scores)
        return (scores - everyone.mean()) / (everyone.std() + 1e-4)

    def _score(self, prompts, texts):
        total = torch.zeros(len(texts), device=self.accelerator.device)
        for fn in self.rewards:
            total += torch.tensor(fn(prompts, texts, note=self.note, extra=self.extra), device=total.device)
        return total

    def train(self):
        for prompts in self.loader:
            texts, logps = self.sampler(self.model, prompts)
            scores = self._score(prompts, texts)
            self._flush()
            loss = -(self._advantages(scores) * logps).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
