import functools
import os

import torch.distributed as dist


SOLO_VAR = "RECIPE_SOLO"


def is_first():
    return int(os.environ.get("RANK", 0)) == 0


def on_main(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        os.environ[SOLO_VAR] = "1"
        try:
            if is_first():
                return function(*args, **kwargs)
            return None
        finally:
            os.environ[SOLO_VAR] = "0"

    return wrapped


def meet():
    if os.environ.get(SOLO_VAR) == "1":
        return
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
