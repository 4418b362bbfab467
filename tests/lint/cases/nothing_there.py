"""What is left out where this rank has nothing: layers of experts, and the graph of an exchange."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, tokens, counts):
        per_expert = counts.tolist()
        if sum(per_expert) == 0:
            return tokens
        return self.up(tokens)  # LNT111


class AlwaysRun(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, tokens, counts):
        per_expert = counts.tolist()
        if sum(per_expert) == 0:
            return self.up(tokens.new_zeros(1, tokens.shape[1]))[:0]
        return self.up(tokens)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 8)
        self.experts, self.others, self.shared = Experts(width), AlwaysRun(width), Shared(width)

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        mine = choice < 4
        counts = torch.bincount(choice[mine], minlength=8)
        return self.experts(x[mine], counts) + self.others(x[mine], counts) + self.shared(x, x)


class Shared(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x, rest):
        if len(rest) == 0:  # of the whole batch
            return x
        return self.up(x)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sizes):
        out = x.new_empty(sum(sizes), x.shape[1])
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad)
        return out, None


class Sparse(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def run(self, tokens):
        if tokens.shape[0] == 0:
            return torch.empty(0, tokens.shape[1])
        return self.up(tokens)

    def run_or_pass(self, tokens):
        if tokens.shape[0] == 0:
            return tokens
        return self.up(tokens)

    def forward(self, x, sizes):
        mine = Exchange.apply(x, sizes)
        done = self.run(mine)
        back = Exchange.apply(done, sizes)  # LNT117
        passed = self.run_or_pass(mine)
        return back + Exchange.apply(passed, sizes)


def main():
    dist.init_process_group("nccl")
    net, sparse = DDP(Block(64)), DDP(Sparse(64))
    for _ in range(10):
        (net(torch.randn(8, 64)) + sparse(torch.randn(8, 64), [8])).sum().backward()


class Boxes(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body, self.boxer, self.marker = nn.Linear(width, width), nn.Linear(width, 4), nn.Linear(width, 4)

    def forward(self, x, objects, count):
        x, losses = self.body(x), {}
        boxes = None
        if len(objects) > 0:
            boxes = self.boxer(x[objects])  # LNT111
        if len(count) > 0:
            boxes = self.marker(x)
        return x, boxes


class Heads(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.boxes = nn.Linear(width, 9), nn.Linear(width, 4)

    def forward(self, x, labels):
        losses = {"word": nn.functional.cross_entropy(self.words(x), labels)}
        positive = labels > 0
        boxes = self.boxes(x)
        if positive.any():  # LNT111
            losses["box"] = boxes[positive].abs().mean()
        return losses


class AllHeads(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.boxes = nn.Linear(width, 9), nn.Linear(width, 4)

    def forward(self, x, labels):
        positive = labels > 0
        boxes = self.boxes(x)[positive].abs().sum() / positive.sum().clamp(min=1)
        return {"word": nn.functional.cross_entropy(self.words(x), labels), "box": boxes}


def told(losses):
    words = {}
    for word, loss in losses.items():
        words[word] = loss.mean()
    for word, loss in words.items():
        loss = loss.detach().clone()
        dist.all_reduce(loss)  # LNT110
        words[word] = loss.item()
    return words


def told_of_all(losses):
    for word, loss in losses.items():
        loss = loss.detach().clone()
        dist.all_reduce(loss)


def detects(loader):
    net, heads, every = DDP(Boxes(64)), DDP(Heads(64)), DDP(AllHeads(64))
    for batch in loader:
        x, boxes = net(batch["x"], batch["objects"], [1])
        told(heads(x, batch["labels"]))
        told_of_all(every(x, batch["labels"]))
