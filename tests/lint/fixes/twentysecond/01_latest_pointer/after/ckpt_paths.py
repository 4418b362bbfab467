import functools
import os
import re
from typing import Callable, List, Optional, TypeVar

import torch.distributed as dist

T = TypeVar("T")

STEP_DIR = re.compile(r"^epoch_(\d+)_step_(\d+)$")
METADATA = ".metadata"


def read_once(fn: Callable[..., T]) -> Callable[..., T]:
    """Touch the file system on one process and share what it found."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return fn(*args, **kwargs)
        found = [fn(*args, **kwargs) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    return wrapper


def _sort_key(name: str):
    match = STEP_DIR.match(name)
    return int(match.group(1)), int(match.group(2))


def _step_dirs(root: str) -> List[str]:
    if not os.path.isdir(root):
        return []
    names = [n for n in os.listdir(root) if STEP_DIR.match(n)]
    complete = [n for n in names if os.path.exists(os.path.join(root, n, METADATA))]
    return sorted(complete, key=_sort_key)


def _latest_checkpoint(root: str) -> Optional[str]:
    names = _step_dirs(root)
    return os.path.join(root, names[-1]) if names else None


@read_once
def latest_checkpoint(root: str) -> Optional[str]:
    return _latest_checkpoint(root)
