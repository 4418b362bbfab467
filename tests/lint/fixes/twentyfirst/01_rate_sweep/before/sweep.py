import math

import torch


class Hook:
    def before_fit(self, state):
        pass

    def before_batch(self, state):
        pass

    def after_batch(self, state):
        pass

    def after_epoch(self, state):
        pass


class RateSweep(Hook):
    """Raises the learning rate geometrically and records the smoothed loss."""

    def __init__(self, low=1e-7, high=1.0, beta=0.98, blowup=4.0):
        self.low, self.high = low, high
        self.beta, self.blowup = beta, blowup
        self.rates, self.losses = [], []

    def before_fit(self, state):
        self.total = len(state.loader)
        self.average, self.best = 0.0, math.inf
        self.end = None
        self.saved = {k: v.clone() for k, v in state.model.state_dict().items()}

    def before_batch(self, state):
        share = state.step / max(1, self.total - 1)
        rate = self.low * (self.high / self.low) ** share
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        self.rates.append(rate)

    def after_batch(self, state):
        self.average = self.beta * self.average + (1 - self.beta) * state.loss.item()
        smooth = self.average / (1 - self.beta ** (state.step + 1))
        self.losses.append(smooth)
        self.best = min(self.best, smooth)
        if state.step > 10 and (not math.isfinite(smooth) or smooth > self.blowup * self.best):
            state.stop_epoch = True
            state.stop_training = True

    def after_epoch(self, state):
        state.stop_training = True
        state.model.load_state_dict(self.saved)

    def suggestion(self, skip_end=5):
        losses = torch.tensor(self.losses[: self.end])
        if len(losses) > skip_end + 2:
            losses = losses[:-skip_end]
        slope = losses[1:] - losses[:-1]
        return self.rates[int(slope.argmin())]
