"""Losses by their words: what goes through them, compares them by a function that is kept, and agrees on each."""

import operator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Coach:
    def __init__(self, net, loader):
        self.net, self.loader = DDP(net), loader
        self.best = 9.0
        self.keeper = Keeper("max")

    def scores(self, x):
        out = self.net(x)
        return {"loss": out.mean(), "close": (out < 0.1).float().mean()}

    def summed(self):
        sums = {}
        for x in self.loader:
            for word, value in self.scores(x).items():
                sums[word] = sums.get(word, 0.0) + value.item()
        return {f"{word}/epoch": total / 10 for word, total in sums.items()}

    def summed_for_all(self):
        sums = {}
        for x in self.loader:
            scores = self.scores(x)
            for value in scores.values():
                dist.all_reduce(value)
            for word, value in scores.items():
                sums[word] = sums.get(word, 0.0) + value.item()
        return {f"{word}/epoch": total / 10 for word, total in sums.items()}

    def by_its_own(self):
        scores = self.summed()
        if scores["loss/epoch"] < self.best:
            dist.barrier()  # LNT107

    def by_all(self):
        scores = self.summed_for_all()
        if scores["loss/epoch"] < self.best:
            dist.barrier()

    def word_by_word(self, x):
        scores = self.scores(x)
        for word in scores:
            dist.all_reduce(scores[word])
        if scores["loss"] < self.best:
            dist.barrier()

    def anew(self, x):
        scores = self.scores(x)
        for word, value in scores.items():
            scores[word] = mean_over_ranks_reduced(value)
        if scores["loss"] < self.best:
            dist.barrier()

    def skips(self):
        for x in self.loader:
            losses = self.net(x)
            total = sum(losses.values())
            if not torch.isfinite(total):
                continue  # LNT107
            total.backward()

    def until_it_is_no_better(self, epochs):
        for _ in range(epochs):
            if self.keeper.is_over(self.summed()):
                break  # LNT108
            dist.barrier()

    def until_all_say_so(self, epochs):
        for _ in range(epochs):
            if self.keeper.is_over(self.summed_for_all()):
                break
            dist.barrier()


class Keeper:
    def __init__(self, mode):
        self.better = operator.gt if mode == "max" else operator.lt
        self.best, self.bad = 0.0, 0

    def is_over(self, scores):
        now = scores.get("close/epoch")
        if self.better(now, self.best):
            self.best, self.bad = now, 0
            return False
        self.bad += 1
        return self.bad > 3


def until_the_end(net, tokens, most):
    for _ in range(most):
        tokens = net(tokens).argmax(-1)
        if (tokens == 2).all():
            break  # LNT108
    return tokens


def until_the_end_of_all(net, tokens, most):
    for _ in range(most):
        tokens = net(tokens).argmax(-1)
        left = (tokens != 2).any().float()
        dist.all_reduce(left, op=dist.ReduceOp.MAX)
        if left.item() == 0:
            break
    return tokens


def until_a_number_is_reached(net, score, tokens, most):
    for n in range(most):
        tokens = net(tokens)
        if score(n) > 3:
            break
    return tokens


def texts(net, score, loader):
    net = DDP(net)
    for tokens in loader:
        until_a_number_is_reached(net, score, tokens, 100)
        until_the_end(net, tokens, 100)
        until_the_end_of_all(net, tokens, 100)


def until_a_step_is_good(step, x):
    while True:
        if step(x) < 0.1:
            break


def reduced_step(x):
    dist.all_reduce(x)
    return x


def solved(x):
    until_a_step_is_good(reduced_step, x)


class Finder:
    def __init__(self, steps):
        self.steps, self.best = steps, 9.0

    def told(self, n, loss):
        self.best = min(self.best, loss)
        if n > self.steps or loss > 4 * self.best:
            return {"stop": True}
        return {}

    def told_by_steps(self, n):
        if n > self.steps:
            return {"stop": True}
        return {}


def finds_a_rate(net, loader):
    net, finder = DDP(net), Finder(100)
    for n, x in enumerate(loader):
        loss = net(x).mean()
        loss.backward()
        state = finder.told(n, loss.item())
        if state.get("stop"):
            break  # LNT108


def finds_it_in_so_many_steps(net, loader):
    net, finder = DDP(net), Finder(100)
    for n, x in enumerate(loader):
        net(x).mean().backward()
        state = finder.told_by_steps(n)
        if state.get("stop"):
            break
