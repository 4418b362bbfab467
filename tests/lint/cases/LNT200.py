"""Collectives in handlers, threads, workers, at exit."""

import atexit
import signal
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


def in_a_handler(x):
    try:
        x.load()
    except ValueError:
        dist.barrier()  # LNT201


def in_a_fallback(x):
    try:
        dist.all_reduce(x)
    except RuntimeError:
        dist.all_reduce(x.cpu())


def in_finally(x):
    try:
        dist.all_reduce(x)
    finally:
        dist.barrier()  # LNT202


def destroys(x):
    try:
        dist.all_reduce(x)
    finally:
        dist.destroy_process_group()


def swallows(model, loader):
    model = DDP(model)
    for x in loader:
        try:
            loss = model(x)
            loss.backward()
        except RuntimeError as error:  # LNT203
            print(error)
            continue


def raises_again(model, loader):
    model = DDP(model)
    for x in loader:
        try:
            model(x).backward()
        except RuntimeError as error:
            print(error)
            raise


def steps(model, loader):
    for x in loader:
        try:
            model(x).backward()
        except Exception:  # LNT203
            torch.cuda.empty_cache()


def gives(model, loader):
    steps(DDP(model), loader)


class Log:
    def __del__(self):
        dist.barrier()  # LNT204


def flush():
    dist.barrier()


def registers():
    atexit.register(flush)  # LNT204
    atexit.register(dist.destroy_process_group)
    signal.signal(signal.SIGTERM, lambda s, f: dist.barrier())  # LNT204
    signal.signal(signal.SIGTERM, lambda s, f: print(s))


class Files(Dataset):
    def __getitem__(self, index):
        dist.all_reduce(torch.ones(1))  # LNT205
        return index


def collate(items):
    dist.barrier()
    return items


def loads(items):
    return DataLoader(items, collate_fn=collate)  # LNT205


class Metrics:
    def __init__(self, group):
        self.group, self.side = group, dist.new_group()

    def reduce(self):
        dist.all_reduce(torch.ones(1), group=self.group)

    def own(self):
        dist.all_reduce(torch.ones(1), group=self.side)

    def start(self):
        threading.Thread(target=self.reduce).start()  # LNT206
        threading.Thread(target=self.own).start()
        threading.Thread(target=flush).start()  # LNT206

    def train(self, x):
        dist.all_reduce(x, group=self.group)


def ends(rank):
    if rank == 0:
        dist.destroy_process_group()  # LNT207


def in_its_own_process(context):
    context.Process(target=makes_groups).start()


def makes_groups():
    dist.barrier()


def saved_by_the_first(x, path):
    if dist.get_rank() == 0:
        x.save(path)
    dist.barrier()


def kept_going(x, path):
    try:
        saved_by_the_first(x, path)
    except Exception:  # LNT203
        return False
    return True


def raised_again(x, path):
    try:
        saved_by_the_first(x, path)
    except Exception as error:
        print(error)
        raise


def told_to_all(x, path):
    read = [None]
    try:
        if dist.get_rank() == 0:
            read = [x.load(path)]
    except OSError:
        pass
    dist.broadcast_object_list(read, src=0)


def caught_by_the_first(x, path):
    read = [None]
    try:
        if dist.get_rank() == 0:
            try:
                read = [x.load(path)]
            except OSError:
                read = [None]
        dist.broadcast_object_list(read, src=0)
    except RuntimeError:
        return None
    return read[0]


def only_shown(x):
    try:
        if dist.get_rank() == 0:
            print(x)
        dist.barrier()
    except Exception:
        return False
    return True


def strict_if_asked(parts, strict=False):
    for part in parts:
        try:
            measured(part)
        except Exception as error:  # LNT203
            if strict:
                raise
            print(error)


def strict_unless_told(parts, strict=True):
    for part in parts:
        try:
            measured(part)
        except Exception as error:
            if strict:
                raise
            print(error)


def strict_where_it_is_called(parts, must_work=False):
    for part in parts:
        try:
            measured(part)
        except Exception as error:
            if must_work:
                raise
            print(error)


def measures_all(parts):
    strict_where_it_is_called(parts, must_work=True)


def measured(part):
    with open(part) as f:
        marks = [len(line) for line in f]
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, marks)
    return rows


def hands_out(rank, path):
    try:
        if rank == 0:
            rows = [open(path).read()]
            dist.broadcast_object_list(rows, src=0)
        else:
            rows = [None]
            dist.broadcast_object_list(rows, src=0)
    except OSError:  # LNT203
        rows = [None]
    dist.barrier()
    return rows


def hands_out_what_it_has(rank, path):
    rows = [None]
    if rank == 0:
        try:
            rows = [open(path).read()]
        except OSError:
            print("there is no", path)
        dist.broadcast_object_list(rows, src=0)
    else:
        dist.broadcast_object_list(rows, src=0)
    dist.barrier()
    return rows


def reads_after_it(rank, path):
    try:
        if rank == 0:
            dist.broadcast_object_list([path], src=0)
            print(open(path).read())
        else:
            dist.broadcast_object_list([None], src=0)
    except OSError:
        print("there is no", path)


def saves_twice(rank, path, x, has_more, has_most):
    try:
        if has_more:
            dist.all_reduce(x)
            if rank == 0:
                torch.save(x, path)
        if has_most:
            dist.all_reduce(x)
    except Exception:  # LNT203
        print("not saved")
