"""What the first rank alone sets, and is asked for later."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, net, rank):
        self.model, self.rank = DistributedDataParallel(net), rank
        self.is_done = self.is_told = False
        self.writer = None
        self.enabled = rank == 0
        if rank == 0:
            self.writer = open("losses.txt")

    def evaluate(self, score):
        if self.rank != 0:
            return
        if score > 0.9:
            self.is_done = True

    def agree(self, score):
        if self.rank == 0 and score > 0.9:
            self.is_told = True
        told = [self.is_told]
        dist.broadcast_object_list(told, src=0)
        self.is_told = told[0]

    def fit(self, loader, optimizer):
        for batch in loader:
            self.model(batch).mean().backward()
            optimizer.step()
            self.evaluate(1)
            if self.is_done:
                break  # LNT102

    def fit_together(self, loader, optimizer):
        for batch in loader:
            self.model(batch).mean().backward()
            optimizer.step()
            self.agree(1)
            if self.is_told:
                break

    def log(self, loss):
        if self.writer:
            dist.all_reduce(loss)  # LNT101

    def log_of_all(self, loss):
        dist.all_reduce(loss)
        if self.writer:
            self.writer.write(str(loss))

    def show(self, loss):
        if not self.enabled:
            return  # LNT102
        dist.all_reduce(loss)


def role(rank, x):
    kind = "writer" if rank == 0 else "reader"
    dist.broadcast(x, 0)
    if kind == "writer":
        dist.barrier()  # LNT101


def patience(score, rank, loader):
    bad = 0
    for batch in loader:
        dist.all_reduce(batch)
        if rank == 0:
            if score(batch) < 1:
                bad += 1
        if bad > 3:
            break  # LNT102


def sends(rank, module):
    ours = list(module.parameters()) if rank == 0 else []
    for p in ours:
        dist.broadcast(p, 0)  # LNT110


def sends_names(rank):
    names = open("names").readlines() if rank == 0 else []
    box = [names]
    dist.broadcast_object_list(box, src=0)
    for _ in box[0]:
        dist.barrier()


def answers(obj, rank):
    if rank == 0:
        dist.broadcast_object_list([obj], src=0)
    else:
        box = [None]
        dist.broadcast_object_list(box, src=0)
        dist.barrier()  # LNT101
        return box[0]


def answers_all(obj, rank):
    if rank == 0:
        dist.broadcast_object_list([obj], src=0)
        return obj
    box = [None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


class Average:
    @property
    def of_all(self):
        dist.all_reduce(self.total)
        return self.total


def prints(average, rank, total):
    meter = Average()
    meter.total = total
    if rank == 0:
        print(f"loss {meter.of_all}")  # LNT101


def prints_one(rank, total):
    meter = Average()
    meter.total = total
    of_all = meter.of_all
    if rank == 0:
        print(of_all)


class Callback:
    def on_round_end(self):
        pass


class Meets(Callback):
    def on_round_end(self):
        dist.barrier()


def calls_back(callbacks, rank):
    for callback in callbacks:
        callback.on_round_end()
    if rank == 0:
        for callback in callbacks:
            callback.on_round_end()  # LNT101


def run_folder(root):
    if root is None:
        return None
    if dist.get_rank() != 0:
        return None
    return root / "run"


def snapshot(x, folder):
    if dist.get_rank() == 0:
        x.save(folder)
    dist.barrier()


def rounds(x, folder):
    for _ in range(3):
        dist.all_reduce(x)
        if folder is not None:
            snapshot(x, folder)


def begins(x, root):
    rounds(x, run_folder(root))  # LNT101


def cached(path):
    if not path.exists():
        return None
    if dist.get_rank() != 0:
        return []
    return [path]


def asks_for_it(x, path):
    if cached(path) is not None:
        dist.all_reduce(x)


class Courier:
    def send(self, x):
        dist.all_reduce(x)


class Sender:
    def __init__(self, rank, stub=None):
        self.rank, self.bar = rank, None
        self.courier, self.spare, self.third = Courier(), Courier(), Courier()
        if rank == 0:
            if stub is not None:
                self.courier = None
            self.spare = None
            self.bar = open("bar")
        if stub is not None:
            self.third = None

    def sends(self, x):
        if self.courier is None:
            return  # LNT102
        self.courier.send(x)

    def sends_by_spare(self, x):
        if self.spare is not None:
            self.spare.send(x)  # LNT101

    def sends_by_third(self, x):
        if self.third is not None:
            self.third.send(x)

    def ends(self, x):
        if self.rank == 0:
            self.bar = None
        if self.bar is not None:
            self.bar.close()
        dist.all_reduce(x)
