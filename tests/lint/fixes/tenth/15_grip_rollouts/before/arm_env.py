import random

import torch


class ArmEnv:
    def __init__(self, seed, limit=400):
        self.dice = random.Random(seed)
        self.limit = limit

    def _see(self):
        obs = {"image": torch.randn(1, 3072)}
        if self.dice.random() < 0.5:
            obs["subtask"] = torch.randn(1, 64)
        return obs

    def reset(self):
        self.t = 0
        return self._see()

    def step(self, action):
        self.t += 1
        success = self.dice.random() < 0.01
        return self._see(), success, success or self.t >= self.limit
