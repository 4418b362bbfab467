"""What callers give decides in the function: constants, lengths, lists that may be empty, wrapped modules."""

import functools
import signal
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard


def parts_of(batch, most, group=None):
    count = batch["mask"].sum().item() // most
    if dist.is_initialized() and group is not None:
        number = torch.tensor([count])
        dist.all_reduce(number, group=group)
        count = number.item()
    return [batch["rows"][i] for i in range(count)]


class Actor:
    def __init__(self, net: FSDP):
        self.net = net

    def update(self, batch):
        for part in parts_of(batch, 1000):
            self.net(part).sum().backward()  # LNT110

    def update_together(self, batch):
        for part in parts_of(batch, 1000, dist.group.WORLD):
            self.net(part).sum().backward()

    def update_rows(self, batch):
        for i in range(min(len(batch), 8)):
            self.net(batch[i]).sum().backward()


def norm_of(grads):
    if not grads:
        return 0.0  # LNT108
    total = sum(g.norm() for g in grads)
    dist.all_reduce(total)
    return total


def norm_of_all(grads):
    total = sum((g.norm() for g in grads), torch.zeros(()))
    dist.all_reduce(total)
    return total


def clip(params):
    grads = [p.grad for p in params if p.grad is not None]
    return norm_of(grads), norm_of_all(grads)


def shards(params):
    mine = []
    for p in params:
        if p.main is not None:
            mine.append(p.main)
    norm = torch.zeros(())
    if len(mine) > 0:
        dist.all_reduce(norm)  # LNT107
    return norm


def shard(model):
    fully_shard(model)


def samples(model, rank, x):
    shard(model)
    if rank == 0:
        model(x)  # LNT103


@dataclass
class Where:
    main: bool
    name: str


def from_a_data_class(x):
    where = Where(main=dist.get_rank() == 0, name="a")
    if where.main:
        dist.all_reduce(x)  # LNT101
    if where.name:
        dist.all_reduce(x)


def first_alone(fn):
    @functools.wraps(fn)
    def wrapped(*args):
        if dist.get_rank() == 0:
            return fn(*args)
        return None

    return wrapped


def timed(fn):
    @functools.wraps(fn)
    def wrapped(*args):
        if dist.get_rank() == 0:
            print(fn.__name__)
        return fn(*args)

    return wrapped


@first_alone
def saved(x):
    dist.all_reduce(x)  # LNT101


@timed
def reduced(x):
    dist.all_reduce(x)


def partly(x):
    add = functools.partial(dist.all_reduce, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        add(x)  # LNT101


def hooked(model):
    if dist.get_rank() == 0:
        model.register_forward_hook(lambda m, i, o: dist.all_reduce(o))  # LNT101
    model.register_forward_hook(lambda m, i, o: dist.all_reduce(o))


def own_turns(loader):
    for i, _ in enumerate(loader):
        if i % dist.get_world_size() != dist.get_rank():
            continue  # LNT102
        dist.barrier()


class Meter:
    def __init__(self):
        self.own, self.all = {}, {}

    def add(self, rank, key, value):
        self.all[key] = value
        if rank == 0:
            self.own[key] = value

    def reduce(self):
        for key in self.all:
            dist.all_reduce(self.all[key])
        for key in self.own:
            dist.all_reduce(self.own[key])  # LNT110


class Stop(SystemExit):
    pass


class Loop:
    def __init__(self):
        self.stopped = False
        signal.signal(signal.SIGTERM, self.on_signal)

    def on_signal(self, number, frame):
        self.stopped = True

    def after(self):
        if self.stopped:
            raise Stop

    def refuse(self):
        if self.stopped:
            raise SystemExit("stopped")

    def run(self, x):
        for _ in range(10):
            dist.all_reduce(x)
            self.refuse()
        while True:
            dist.all_reduce(x)
            self.after()  # LNT106


class Head(torch.nn.Module):
    def reduce_for_report(self, x):
        dist.all_reduce(x)


def reported(model, x):
    if dist.get_rank() == 0:
        model.reduce_for_report(x)  # LNT101


def orders(todo, fetch):
    while True:
        if dist.get_rank() == 0:
            order = fetch()
            if order is None:
                continue
            todo = [order]
        dist.broadcast_object_list(todo)


def leaves_the_others(todo):
    while True:
        dist.broadcast_object_list(todo)
        if dist.get_rank() == 0 and not todo:
            break  # LNT102


def sent_or_named(loaded, x):
    if isinstance(loaded, torch.Tensor):
        dist.broadcast(x, src=dist.get_rank())
    else:
        dist.broadcast(x, src=loaded)


class Grid:
    def __init__(self, grid):
        self.ends = dist.new_group([grid.pp_group[0], grid.pp_group[-1]])  # LNT104
