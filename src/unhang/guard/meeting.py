"""The store in which the ranks meet, where `process_group` is used several times in one process.

torch names its keys in every use as in the first. In the same store, the ranks of a second use find the addresses of groups
that are gone, and wait for those (gloo: 40 s, whatever the timeout), or take the identifier of an old communicator.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import Any

from unhang.guard.board import Board, innermost

_uses: Counter[str] = Counter()
# Rank 0's server stays until the process ends, or meets elsewhere: another rank may begin its next use before rank 0 has ended
# the last one.
_hosted: list[Any] = []


def prepared(backend: str, more: dict[str, Any], limit_s: float) -> tuple[dict[str, Any], int]:
    """The arguments of `init_process_group` for this use, and its number in its store. MPI meets without a store.

    Blocks: in a second use, until all ranks have come to the store, up to `limit_s`.
    """
    number = begun(more)
    return more if backend == "mpi" else with_keys_of_its_own(more, number, limit_s), number


def begun(more: dict[str, Any]) -> int:
    """The how-manieth use of this store this is in this process; the same on all ranks, which make equally many.

    Args:
        more: arguments of `init_process_group`.
    """
    place = _place(more)
    _uses[place] += 1
    return _uses[place]


def _place(more: dict[str, Any]) -> str:
    if more.get("store") is not None:
        store = innermost(more["store"])
        where = (
            f"{getattr(store, 'host', '')}:{store.port}"
            if getattr(store, "port", 0)
            else getattr(store, "path", id(store))
        )
        return f"{type(store).__name__} {where}"
    method = str(more.get("init_method") or "env://")
    if method.startswith("env://"):
        return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return method


def with_keys_of_its_own(more: dict[str, Any], number: int, limit_s: float) -> dict[str, Any]:
    """The arguments of `init_process_group`, with a store in which the keys of this use do not meet those of earlier ones.

    Blocks: until all ranks have come to the store, up to `limit_s`.
    """
    if number == 1:
        return more
    import torch.distributed as dist

    more = dict(more)
    store, rank, size = more.pop("store", None), more.pop("rank", -1), more.pop("world_size", -1)
    if store is None:
        limit = timedelta(seconds=limit_s)
        met = dist.rendezvous(more.pop("init_method", None) or "env://", rank, size, timeout=limit)
        store, rank, size = next(iter(met))
        store.set_timeout(limit)
    return {**more, "store": dist.PrefixStore(f"use_{number}", store), "rank": rank, "world_size": size}


def keep_server(board: Board) -> None:
    """Has rank 0 keep the server for a next use."""
    if board.rank == 0 and board.port:
        _hosted[:] = [board.keeps_alive]
