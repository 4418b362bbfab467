import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        return self.up(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in mask.sum(-1).nonzero().flatten().tolist():
            x = x + self.experts[i](x)  # LNT111
        return x


class Skipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in range(4):
            (rows,) = torch.where(mask[i])
            if rows.numel() == 0:
                continue  # LNT111
            x = x + self.experts[i](x)
        return x


class Dummy(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in range(4):
            (rows,) = torch.where(mask[i])
            if rows.numel() == 0:
                x = x + 0.0 * self.experts[i](x[:1]).sum()
            else:
                x = x + self.experts[i](x)
        return x


class Fixed(nn.Module):
    def __init__(self, deep):
        super().__init__()
        self.deep = deep
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if self.deep else x


def shard(model):
    return fully_shard(model)


class Sees(torch.nn.Module):
    def __init__(self, vision, language, activation):
        super().__init__()
        self.vision, self.language, self.activation = vision, language, activation

    def forward(self, batch):
        x = self.language.embed(batch["ids"])
        if (batch["ids"] == 32000).any():
            x = x + self.vision(batch["pixels"])  # LNT111
        if (batch["ids"] == 1).any():
            x = self.activation(x)
        if (batch["ids"] == 2).any():
            x = self.language(x)
        else:
            x = self.language(x[:1])
        return x


def of_what_is_left(hidden, labels, head):
    rows = hidden[labels != -100]
    if rows.numel() == 0:
        return hidden.sum() * 0.0  # LNT111
    return head(rows).sum()


def of_all(hidden, labels, head):
    rows = head(hidden)[labels != -100]
    if rows.numel() == 0:
        return hidden.sum() * 0.0
    return rows.sum()


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x, labels):
        return of_what_is_left(x, labels, self.head) + of_all(x, labels, self.head)


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x, labels):
        return of_some(x, labels, self.act)


def of_some(hidden, labels, act):
    rows = hidden[labels != -100]
    if rows.numel() == 0:
        return hidden.sum() * 0.0
    return act(rows).sum()


class Chosen(nn.Module):
    def __init__(self, make, count):
        super().__init__()
        self.experts, self.head = nn.ModuleList(make(i) for i in range(count)), nn.Linear(4, 4)

    def forward(self, x, chosen):
        rows = chosen.sum(0)
        return self.each(x, chosen) + self.until_done(x) + self.asked(x) + rows

    def each(self, x, chosen):
        for i, _ in enumerate(self.experts):
            rows, _ = torch.where(chosen == i)
            if rows.numel() > 0:
                x[rows] = self.experts[i](x[rows])  # LNT111
        return x

    def until_done(self, x):
        for layer in self.experts:
            x = layer(x)
            if (x > 0).all().item():
                break
        return x

    def asked(self, x):
        if (x > 0).any().item():
            x = self.head(x)
        return x
