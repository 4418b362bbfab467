"""All that a recorder notes, and nothing is wrong: keys of the store, a barrier in a handler, in a `finally`, on the way out."""

import contextlib
import datetime
import os
import signal

import torch
import torch.distributed as dist
import toy


@contextlib.contextmanager
def together():
    try:
        yield
    finally:
        dist.barrier()


def main():
    rank = toy.begin()
    signal.signal(signal.SIGUSR2, lambda *_: dist.barrier())
    store = dist.distributed_c10d._get_default_store()
    try:
        raise ImportError("the fast one is not here")
    except ImportError:
        weights = torch.zeros(4, 1)
        for step in range(6):
            if rank == 0:
                store.set(f"ready/{step}", "1")
            store.wait([f"ready/{step}"], datetime.timedelta(minutes=1))
            with contextlib.suppress(KeyError), together():
                toy.train_step(weights, toy.batch(rank))
                if step == 3:
                    raise KeyError("all ranks leave this step") from None
            dist.monitored_barrier(timeout=datetime.timedelta(minutes=1))
    os.kill(os.getpid(), signal.SIGUSR2)
    toy.end()


main()
