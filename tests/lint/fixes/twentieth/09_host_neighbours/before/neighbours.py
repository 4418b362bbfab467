"""Which ranks of a group share memory with its source rank."""
import contextlib
from multiprocessing import shared_memory
from unittest.mock import patch

import torch
import torch.distributed as dist

MARK = b"same-host-mark"


def on_host_of(group, source=0):
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    found = torch.zeros(world, dtype=torch.int32)
    block = None

    try:
        with contextlib.suppress(OSError):
            if rank == source:
                block = shared_memory.SharedMemory(create=True, size=128)
                block.buf[: len(MARK)] = MARK
                dist.broadcast_object_list([block.name], src=ranks[source], group=group)
                found[rank] = 1
            else:
                name = [None]
                dist.broadcast_object_list(name, src=ranks[source], group=group)
                with patch("multiprocessing.resource_tracker.register", lambda *a, **k: None):
                    block = shared_memory.SharedMemory(name=name[0])
                if bytes(block.buf[: len(MARK)]) == MARK:
                    found[rank] = 1
    finally:
        if block is not None:
            block.close()

    dist.barrier(group=group)
    with contextlib.suppress(OSError):
        if rank == source and block is not None:
            block.unlink()
    dist.all_reduce(found, group=group)
    return [bool(v) for v in found.tolist()]
