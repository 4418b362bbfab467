import torch

from experts import SmallModel


class Worker:
    def __init__(self, device, slots, width=64, limit=256, ahead=3):
        self.device = device
        self.slots = slots
        self.width = width
        self.limit = limit
        self.ahead = ahead
        self.target = SmallModel(width, depth=4).to(device)
        self.drafter = SmallModel(width, depth=1).to(device)
        self.lengths = []

    def admit(self, lengths):
        self.lengths = list(lengths)

    def _hidden(self):
        return torch.randn(self.slots, self.width, device=self.device)

    def _propose(self, hidden):
        for _ in range(self.ahead):
            hidden = self.drafter(hidden)
        return hidden

    def idle_turn(self):
        self._propose(self.target(self._hidden()))

    def turn(self):
        hidden = self.target(self._hidden())
        fits = max(self.lengths) + self.ahead <= self.limit
        gained = 1
        if fits:
            self._propose(hidden)
            gained += self.ahead
        self.lengths = [n + gained for n in self.lengths if n + gained < self.limit]

    @property
    def busy(self):
        return bool(self.lengths)
