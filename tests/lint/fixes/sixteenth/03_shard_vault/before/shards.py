import errno
import os

import torch

PASSING = {errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}


def write_shard(folder, rank, state):
    target = folder / f"part-{rank:05d}.pt"
    with open(target, "wb") as sink:
        torch.save(state, sink)
        sink.flush()
        os.fsync(sink.fileno())
    return target


def is_passing(err):
    return err.errno in PASSING
