"""A rank that fails alone, and leaves or decides by it."""

import queue

import torch
import torch.distributed as dist


def leaves_a_round(model, items):
    for item in items:
        try:
            x = item.load()
        except Exception:
            continue  # LNT203
        dist.all_reduce(model(x))


def returns(path, x):
    try:
        state = path.read()
    except OSError:
        return None  # LNT210
    dist.broadcast(x, src=0)
    return state


def returns_from_the_middle(x, work):
    try:
        work.prepare()
        dist.all_reduce(x)
        return x
    except Exception:
        return None  # LNT210


def fails_after_it(path):
    try:
        dist.barrier()
        path.unlink()
    except OSError:
        return


def decides_by_it(x, work):
    done = True
    try:
        work.run(x)
    except RuntimeError:
        done = False
    if done:
        dist.all_reduce(x)  # LNT210


def decides_together(x, work):
    done = torch.ones(1)
    try:
        work.run(x)
    except RuntimeError:
        done = torch.zeros(1)
    dist.all_reduce(done)
    if done.item():
        dist.all_reduce(x)


def lets_it_out(x, work):
    try:
        work.run(x)
    except RuntimeError as error:
        raise SystemExit(1) from error
    dist.all_reduce(x)


def is_there_at_all(x):
    try:
        import fast
    except ImportError:
        return x
    dist.all_reduce(x)
    return fast.of(x)


def falls_back(x, kernel, plain):
    try:
        y = kernel(x)
    except Exception:
        return plain(x)
    dist.all_reduce(y)
    return y


class Worker:
    def __init__(self):
        self.todo = queue.Queue()

    def step(self):
        try:
            item = self.todo.get_nowait()
        except queue.Empty:
            return  # LNT210
        dist.broadcast_object_list([item], src=0)
