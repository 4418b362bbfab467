import functools
import os

import torch.distributed as dist


def is_first():
    return int(os.environ.get("RANK", 0)) == 0


def on_main(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if is_first():
            return function(*args, **kwargs)
        return None

    return wrapped


def meet():
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
