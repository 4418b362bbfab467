class Patience:
    def __init__(self, limit):
        self.limit = limit
        self.best = float("inf")
        self.bad = 0

    def note(self, score):
        self.bad = 0 if score < self.best else self.bad + 1
        self.best = min(score, self.best)

    def done(self):
        return self.bad >= self.limit
