"""What sections, heartbeats and watched loaders cost: microseconds per use in a loop, best and median of many rounds.

python benchmarks/section_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from unhang.guard.heartbeat import heartbeat
from unhang.guard.loader_watch import watch_loader
from unhang.guard.section import section

_ROUNDS, _USES = 100, 5000


def microseconds(once: Callable[[], object]) -> list[float]:
    """Per call, for each round, the cost of the loop included."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(_USES):
            once()
        rounds.append((time.perf_counter() - began) / _USES * 1e6)
    return rounds


def _use_section() -> None:
    with section("step", limit_s=60):
        pass


def _per_item(items: Iterable[int]) -> list[float]:
    rounds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in items:
            pass
        rounds.append((time.perf_counter() - began) / _USES * 1e6)
    return rounds


def main() -> None:
    beat = heartbeat(every=10**9)

    def phase() -> None:
        with beat.phase("data"):
            pass

    used = section("step", limit_s=60)

    def reused() -> None:
        with used:
            pass

    rows = {
        "with section(...):": microseconds(_use_section),
        "with a section made before:": microseconds(reused),
        "hb.step()": microseconds(beat.step),
        "hb.step(loss=...)": microseconds(lambda: beat.step(loss=1.0)),
        "with hb.phase(...):": microseconds(phase),
        "an item of watch_loader": _per_item(watch_loader(range(_USES))),
    }
    beat.close()
    for name, rounds in rows.items():
        print(f"{name:<30} best {min(rounds):5.2f} us, median {statistics.median(rounds):5.2f} us")


if __name__ == "__main__":
    main()
