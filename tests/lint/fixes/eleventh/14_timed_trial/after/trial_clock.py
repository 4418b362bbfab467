import time


class TrialClock:
    def __init__(self, eval_period, budget):
        self.eval_period = eval_period
        self.budget = budget
        self.spent = 0.0
        self.last_eval = time.monotonic()

    def add(self, seconds):
        self.spent += seconds

    def due(self):
        return time.monotonic() - self.last_eval >= self.eval_period

    def evaluated(self):
        self.last_eval = time.monotonic()
