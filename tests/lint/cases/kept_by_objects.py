"""A flag or an average that a method sets by what it was given, and that is asked for elsewhere."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best = patience, 0, None
        self.early_stop = False

    def __call__(self, loss):
        if self.best is None or loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            if self.bad >= self.patience:
                self.early_stop = True

    def is_over(self, loss):
        self(loss)
        return self.early_stop


class Average:
    def __init__(self):
        self.total, self.count, self.mean = 0.0, 0, 0.0

    def update(self, value, n):
        self.total += value * n
        self.count += n
        self.mean = self.total / self.count


def validated(net, batches):
    loss = Average()
    for x, y in batches:
        loss.update(torch.nn.functional.mse_loss(net(x), y).item(), len(x))
    return loss.mean


def train(net, batches, checks):
    net = DDP(net)
    stopping = EarlyStopping(3)
    for _ in range(10):
        for x, y in batches:
            torch.nn.functional.mse_loss(net(x), y).backward()
        stopping(validated(net, checks))
        if stopping.early_stop:
            break  # LNT108


def train_together(net, batches, checks):
    net = DDP(net)
    stopping = EarlyStopping(3)
    for _ in range(10):
        for x, y in batches:
            torch.nn.functional.mse_loss(net(x), y).backward()
        loss = torch.tensor(validated(net, checks))
        dist.all_reduce(loss)
        stopping(loss)
        if stopping.early_stop:
            break


def train_for_epochs(net, batches, epochs):
    net = DDP(net)
    stopping = EarlyStopping(3)
    for epoch in range(epochs):
        for x, y in batches:
            torch.nn.functional.mse_loss(net(x), y).backward()
        stopping(epoch)
        if stopping.early_stop:
            break


class StopAfter:
    def __init__(self, seconds):
        self.seconds, self.began = seconds, time.time()

    def on_step_end(self, args, state, control):
        if time.time() - self.began > self.seconds:
            control.should_training_stop = True  # LNT106

    def on_epoch_end(self, args, state, control):
        if state.epoch > 3:
            control.should_training_stop = True


class Patience:
    def __init__(self, patience):
        self.patience, self.bad, self.best = patience, 0, float("inf")

    def after_validation(self, trainer, scores):
        if scores["loss"] < self.best:
            self.best, self.bad = scores["loss"], 0
        else:
            self.bad += 1
            if self.bad >= self.patience:
                trainer.is_over = True


class SharedPatience(Patience):
    def after_sharing(self, trainer, scores):
        self.after_validation(trainer, scores)
        told = torch.tensor(int(trainer.is_over))
        dist.all_reduce(told)
        trainer.is_over = bool(told.item())


class Rounds:
    def __init__(self, net, callbacks):
        self.net, self.callbacks, self.is_over = DDP(net), callbacks, False

    def scores(self, batches):
        total = 0.0
        for x, y in batches:
            total += torch.nn.functional.mse_loss(self.net(x), y).item()
        return {"loss": total}

    def fit(self, batches):
        for _ in range(10):
            for x, y in batches:
                torch.nn.functional.mse_loss(self.net(x), y).backward()
            scores = self.scores(batches)
            for callback in self.callbacks:
                callback.after_validation(self, scores)
            if self.is_over:
                break  # LNT108

    def fit_together(self, batches):
        for _ in range(10):
            for x, y in batches:
                torch.nn.functional.mse_loss(self.net(x), y).backward()
            scores = self.scores(batches)
            for callback in self.callbacks:
                callback.after_sharing(self, scores)
            if self.is_over:
                break
