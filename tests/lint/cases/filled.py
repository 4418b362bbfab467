"""Lists that are filled by what a batch holds, and results that are None where it holds nothing."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def average(net, loader):
    model = DistributedDataParallel(net)
    kept = []
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss):
            continue
        kept.append(loss)
    if not kept:
        return None  # LNT108
    return dist.all_reduce(torch.stack(kept).mean())


def average_of_all(model, loader):
    kept = []
    for batch in loader:
        kept.append(model(batch))
    if not kept:
        return None
    return dist.all_reduce(torch.stack(kept).mean())


def filtered(samples):
    good = [s for s in samples if s["reward"] > 0]
    for one in good:
        dist.all_reduce(one)  # LNT107


def gathered(batch, out):
    good = [s for s in batch["rows"] if s.sum() > 0]
    dist.all_gather(out, torch.stack(good))  # LNT303


class Trainer:
    def __init__(self, net, optimizer):
        self.model, self.optimizer = DistributedDataParallel(net), optimizer

    def loss(self, batch):
        loss = self.model(batch).mean()
        if not torch.isfinite(loss):
            return None
        return loss

    def agreed(self, batch):
        loss = self.model(batch).mean()
        bad = (~torch.isfinite(loss)).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            return None
        return loss

    def fit(self, loader):
        for batch in loader:
            loss = self.loss(batch)
            if loss is None:
                continue  # LNT107
            loss.backward()
            self.optimizer.step()

    def fit_together(self, loader):
        for batch in loader:
            loss = self.agreed(batch)
            if loss is None:
                continue
            loss.backward()
            self.optimizer.step()


def readable(items):
    items = [i for i in items if i is not None]
    return torch.stack(items) if items else None


def only_readable(items):
    items = [i for i in items if i is not None]
    if not items:
        return None
    return torch.stack(items)


def reads(net, data, optimizer):
    model = DistributedDataParallel(net)
    for batch in DataLoader(data, collate_fn=only_readable):
        if batch is None:
            continue  # LNT107
        model(batch).mean().backward()
        optimizer.step()


def reads_all(net, data, optimizer):
    model = DistributedDataParallel(net)
    for batch in DataLoader(data):
        if batch is None:
            continue
        model(batch).mean().backward()
        optimizer.step()


def best(model, loader, score):
    losses = []
    for batch in loader:
        losses.append(model(batch).item())
    dist.barrier()
    return sum(losses) / len(losses)


def keeps_best(net, loader, former):
    model = DistributedDataParallel(net)
    if best(model, loader, None) < former:
        dist.barrier()  # LNT107


def fetched(url):
    try:
        return read_image(url)
    except Exception:
        return None


def trains(net, urls, optimizer):
    model = DistributedDataParallel(net)
    for url in urls:
        image = fetched(url)
        if image is None:
            continue  # LNT203
        model(image).mean().backward()
        optimizer.step()


def is_bad(loss):
    if torch.isnan(loss).any():
        return True
    return False


def is_bad_anywhere(loss):
    bad = torch.isnan(loss).any().float()
    dist.all_reduce(bad)
    return bad.item() > 0


def skips_the_bad(net, loader):
    model = DistributedDataParallel(net)
    for batch in loader:
        loss = model(batch).mean()
        if is_bad_anywhere(loss):
            continue
        if is_bad(loss):
            continue  # LNT107
        loss.backward()


def without_spread(net, batch):
    model = DistributedDataParallel(net)
    if batch["rewards"].std() < 1e-8:
        return None  # LNT108
    if len(batch["boxes"]) == 0:
        return None  # LNT108
    return model(batch).backward()


def by_tokens(net, batch):
    model = DistributedDataParallel(net)
    for part in batch["ids"].chunk(batch["mask"].sum().item() // 4096 + 1):
        model(part).mean().backward()  # LNT107


def by_most_tokens(net, batch):
    model = DistributedDataParallel(net)
    count = torch.tensor(batch["mask"].sum().item() // 4096 + 1)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    for part in batch["ids"].chunk(int(count.item())):
        model(part).mean().backward()
