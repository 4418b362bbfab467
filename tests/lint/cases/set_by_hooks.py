"""Hooks that set a flag on the state of a training, by a part of it: by this rank's own loss, or by what is the same everywhere."""

import math
from types import SimpleNamespace

import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Blowup:
    def __init__(self):
        self.best, self.average = math.inf, 0.0

    def after_batch(self, state):
        self.average = 0.9 * self.average + 0.1 * state.loss.item()
        self.best = min(self.best, self.average)
        if state.step > 10 and self.average > 4 * self.best:
            state.stop = True


def by_hooks(net, loader, hooks):
    model = DDP(net)
    state = SimpleNamespace(step=0, loss=None, stop=False)
    for x, y in loader:
        state.loss = F.cross_entropy(model(x), y)
        state.loss.backward()
        for hook in hooks:
            hook.after_batch(state)
        state.step += 1
        if state.stop:
            break  # LNT108


class Watch:
    def look(self, trainer):
        if not math.isfinite(trainer.loss.item()):
            trainer.is_over = True

    def pass_on(self, trainer):
        self.look(trainer)


class Trainer:
    def __init__(self, net, loader):
        self.model, self.loader = DDP(net), loader
        self.watch = Watch()
        self.is_over, self.loss = False, None

    def fit(self):
        for x, y in self.loader:
            self.loss = F.cross_entropy(self.model(x), y)
            self.loss.backward()
            self.watch.pass_on(self)
            if self.is_over:
                break  # LNT108


# Healthy.


class Steps:
    def after_step(self, state):
        print(state.loss.item())
        if state.step >= state.most:
            state.stop = True


class Mean:
    def after_mean(self, state):
        loss = state.loss.detach().clone()
        dist.all_reduce(loss)
        if loss.item() > 100:
            state.stop = True


class Resets:
    def after_look(self, state):
        state.stop = not math.isfinite(state.loss.item())

    def begin(self, state):
        state.stop = False


def healthy(net, loader):
    model = DDP(net)
    steps, mean = Steps(), Mean()
    state = SimpleNamespace(step=0, loss=None, stop=False, most=100)
    for x, y in loader:
        state.loss = F.cross_entropy(model(x), y)
        state.loss.backward()
        steps.after_step(state)
        mean.after_mean(state)
        if state.stop:
            break


def reset_before(net, loader):
    model = DDP(net)
    looks = Resets()
    state = SimpleNamespace(loss=None, stop=False)
    for x, y in loader:
        state.loss = F.cross_entropy(model(x), y)
        state.loss.backward()
        looks.after_look(state)
        if state.stop:
            print("not finite")
        looks.begin(state)
        if state.stop:
            break


class Agreed:
    def after_agreed(self, state):
        if state.loss.item() > 100:
            state.stop = True


def agreed_on_the_loss(net, loader):
    model = DDP(net)
    hook = Agreed()
    state = SimpleNamespace(loss=None, stop=False)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        state.loss = loss.detach()
        dist.all_reduce(state.loss)
        hook.after_agreed(state)
        if state.stop:
            break
