import os
from contextlib import contextmanager

import torch.distributed as dist
from filelock import FileLock

_DISABLE_USE_BARRIER = False


def is_master():
    return int(os.environ.get("RANK", -1)) in {-1, 0}


def is_local_master():
    return int(os.environ.get("LOCAL_RANK", -1)) in {-1, 0}


@contextmanager
def disable_safe_ddp_context_use_barrier():
    global _DISABLE_USE_BARRIER
    _DISABLE_USE_BARRIER = True
    try:
        yield
    finally:
        _DISABLE_USE_BARRIER = False


@contextmanager
def safe_ddp_context(hash_id, use_barrier=True):
    if _DISABLE_USE_BARRIER:
        use_barrier = False
    if use_barrier and dist.is_initialized():
        if not is_master():
            dist.barrier()
        if not is_local_master():
            dist.barrier()
        yield
        if is_master():
            dist.barrier()
        if is_local_master():
            dist.barrier()
    else:
        with FileLock(f"/tmp/{hash_id}.lock"):
            yield
