"""How fast one rank computes: a fixed matrix product, repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

from unhang.preflight.collectives.results import Figures

_DURATION_S = 0.3
_BLOCK_S = 0.01
_MOST_BLOCKS = 60


def compute_speed(device: Any = "cpu", duration_s: float = _DURATION_S) -> Figures:
    """The time of one matrix product on the device.

    It is taken in blocks of about 10 ms, long enough that a processor which is shared with others shows.

    Blocks: about `duration_s`.
    """
    import torch

    device = torch.device(device)
    side = 4096 if device.type == "cuda" else 256
    left = torch.ones(side, side, device=device)
    result = torch.empty_like(left)

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def block(products: int) -> None:
        for _ in range(products):
            torch.mm(left, left, out=result)

    timed(lambda: block(2), sync)
    products = max(1, round(_BLOCK_S / max(timed(lambda: block(3), sync) / 3, 1e-6)))
    end = time.monotonic() + duration_s
    times_s: list[float] = []
    while len(times_s) < 3 or (time.monotonic() < end and len(times_s) < _MOST_BLOCKS):
        times_s.append(timed(lambda: block(products), sync) / products)
    return figures_of(times_s)


def timed(call: Callable[[], object], sync: Callable[[], None]) -> float:
    """Seconds until the device has done it."""
    started = time.perf_counter()
    call()
    sync()
    return time.perf_counter() - started


def figures_of(times_s: Sequence[float], moved_bytes: float = 0.0) -> Figures:
    """Median, lower quartile and median absolute deviation of two times or more; with the bytes that each moved, GB/s."""
    middle = median(times_s)
    low = quantiles(times_s, n=4, method="inclusive")[0]
    busbw_gbps = moved_bytes / middle / 1e9 if moved_bytes and middle else None
    return Figures(middle, low, median(abs(t - middle) for t in times_s), len(times_s), busbw_gbps)
