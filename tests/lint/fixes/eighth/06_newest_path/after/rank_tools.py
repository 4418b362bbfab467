import functools

import torch.distributed as dist


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if not dist.is_initialized() or dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapper


def read_once_and_share(fn):
    @functools.wraps(fn)
    def wrapper(*args, process_group=None, **kwargs):
        if not dist.is_initialized():
            return fn(*args, **kwargs)
        box = [fn(*args, **kwargs)] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(box, src=0, group=process_group)
        return box[0]

    return wrapper
