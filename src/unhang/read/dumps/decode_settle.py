"""The state that nccl's dumps only imply, for all calls of a batch at once. Same meaning as `flight_recorder.settle`.

Legend of shapes: N calls, by dump and order of issue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.model import CallState

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def settle(
    state_N: npt.NDArray[np.int8],
    group_N: Ints,
    tracked_N: Bools,
    is_p2p_N: Bools,
    is_batch_N: Bools,
    keys: tuple[Ints, Ints],
) -> None:
    """Changes `state_N` in place.

    Args:
        state_N: states as written, those of retired calls already told apart.
        group_N: numbers of (dump, group).
        tracked_N: calls of nccl.
        is_p2p_N: point-to-point calls.
        is_batch_N: the calls that stand for a coalesced batch.
        keys: both sequence numbers, which the members of a batch share.
    """
    waiting = np.flatnonzero(tracked_N & (state_N == CallState.SCHEDULED))
    if not len(waiting):
        return
    batches = np.flatnonzero(tracked_N & is_batch_N)
    if len(batches):
        _settle_batches(state_N, waiting[~is_batch_N[waiting]], batches, (group_N, *keys))
    ordered = tracked_N & ~is_p2p_N
    done = np.flatnonzero(ordered & (state_N == CallState.COMPLETED))
    last = np.full(int(group_N.max()) + 1, -1)
    last[group_N[done]] = done
    waiting = waiting[ordered[waiting] & (state_N[waiting] == CallState.SCHEDULED)]
    state_N[waiting[waiting < last[group_N[waiting]]]] = CallState.COMPLETED


def _settle_batches(state_N: npt.NDArray[np.int8], members: Ints, batches: Ints, keys: tuple[Ints, ...]) -> None:
    """Members take the state of the next batch of their group with their sequence numbers."""
    both = np.concatenate([members, batches])
    is_batch = np.arange(len(both)) >= len(members)
    order = np.lexsort((both, *(key[both] for key in keys)))
    both, is_batch = both[order], is_batch[order]
    same: Any = np.zeros(len(both), bool)
    same[1:] = np.logical_and.reduce([key[both[1:]] == key[both[:-1]] for key in keys])
    run = np.cumsum(~same)
    place = np.where(is_batch, np.arange(len(both)), len(both))
    following = np.minimum.accumulate(place[::-1])[::-1]
    following_ok = following < len(both)
    found = ~is_batch & following_ok & (run == run[np.minimum(following, len(both) - 1)])
    state_N[both[found]] = state_N[both[following[found]]]
