"""The clock, chance and disk of each rank."""

import os
import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def by_the_clock(started, batches):
    for x in batches:
        dist.all_reduce(x)
        if time.time() - started > 3600:
            break  # LNT106


def run_folder():
    return Path("runs") / str(time.time_ns())


class Runner:
    def __init__(self):
        self.best = run_folder() / "best.pt"

    def finish(self):
        if self.best.is_file():
            dist.barrier()  # LNT106


def own_folder():
    folder = tempfile.mkdtemp()
    if os.path.exists(os.path.join(folder, "x")):
        dist.barrier()  # LNT106


def shared_folder(path):
    if os.path.exists(path):
        dist.barrier()


def agreed(started, batches):
    for x in batches:
        dist.all_reduce(x)
        stop = [time.time() - started > 3600]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break


def measured(x):
    started = time.time()
    dist.all_reduce(x)
    if time.time() - started > 1:
        print("slow")


def on_the_first(make, *given):
    made = [make(*given)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(made, src=0)
    return made[0]


def written(path):
    path.write_text("x")


def is_missing(path):
    return not os.path.isfile(path)


def generated(path):
    if not os.path.isfile(path):
        on_the_first(written, path)  # LNT106


def generated_together(path):
    if on_the_first(is_missing, path):
        on_the_first(written, path)


def generated_by_all(path, x):
    if not os.path.isfile(path):
        dist.all_reduce(x)
