"""The process that makes the calls of the search: it forms a group, tests it, leaves it, and waits for the next one.

Commands come as JSON lines on stdin, `{"test": 3, "ranks": [0, 2], "prefix": "...", "limit_s": 10}`; each is answered by one
line on stdout: `{"test": 3, "state": "ok", "seconds": 0.01, "reason": ""}`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import median
from typing import Any

from unhang.check.children import die_with_maker
from unhang.check.collectives.worker import own_stdout

_REPEATS = 3
_MOST_BYTES = 32 << 20  # of one rank's buffer
_CHUNK_BYTES = 256 << 10  # to each other rank
_MOST_TEXT = 300
_MODULUS = 65_521  # prime: no pattern of sender, receiver and place repeats within a chunk


def chunk_elements(ranks: int) -> int:
    """How many 32-bit integers each rank sends to each other one."""
    return max(1, min(_CHUNK_BYTES, _MOST_BYTES // ranks) // 4)


class Tester:
    """Tests groups that this rank is in."""

    def __init__(self, rank: int, backend: str, device: str, store: str, start_limit_s: float) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.backend = rank, backend
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        host, port = store.rsplit(":", 1)
        limit = timedelta(seconds=start_limit_s)
        self.store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)

    def test(self, ranks: Sequence[int], prefix: str, limit_s: float) -> tuple[str, float | None, str]:
        """State (ok, wrong, error), median seconds of one exchange, and what was wrong. Blocks up to about `limit_s`."""
        import torch.distributed as dist

        try:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore(prefix, self.store),
                rank=list(ranks).index(self.rank),
                world_size=len(ranks),
                timeout=timedelta(seconds=limit_s),
            )
            seconds, wrong = self._exchange(ranks)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return "error", None, f"{type(error).__name__}: {error}".splitlines()[0][:_MOST_TEXT]
        finally:
            with suppress(Exception):
                dist.destroy_process_group()
        return ("wrong" if wrong else "ok"), seconds, wrong

    def _exchange(self, ranks: Sequence[int]) -> tuple[float, str]:
        """Every rank sends something else to every other one, so that each link carries something; then all reduce."""
        import torch
        import torch.distributed as dist

        size = chunk_elements(len(ranks))
        sent = torch.cat([self._chunk(self.rank, other, size) for other in ranks])
        expected = torch.cat([self._chunk(other, self.rank, size) for other in ranks])
        times: list[float] = []
        for _ in range(_REPEATS):
            received = torch.empty_like(sent)
            started = time.perf_counter()
            dist.all_to_all_single(received, sent)
            self._sync()
            times.append(time.perf_counter() - started)
            differs = (received != expected).nonzero()
            if len(differs):
                source = ranks[int(differs[0]) // size]
                wrong = f"{len(differs)} of {len(expected)} elements are wrong, the first one from rank {source}"
                return median(times), wrong
        total = torch.full((size,), self.rank + 1, dtype=torch.int32, device=self.device)
        dist.all_reduce(total)
        self._sync()
        if bool((total != sum(ranks) + len(ranks)).any()):
            return median(times), "an all_reduce gave a wrong sum"
        return median(times), ""

    def _chunk(self, source: int, target: int, size: int) -> Any:
        import torch

        places = torch.arange(size, dtype=torch.int64, device=self.device)
        return ((places * 31 + source * 7919 + target * 104_729) % _MODULUS).to(torch.int32)

    def _sync(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers commands until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m unhang.check.links.worker", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--start-limit", type=float, required=True)
    for name in ("backend", "device", "store"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args(arguments)
    die_with_maker()
    ours = own_stdout()
    tester = Tester(options.rank, options.backend, options.device, options.store, options.start_limit)
    os.write(ours, b'{"ready": true}\n')
    for line in sys.stdin:
        command = json.loads(line)
        state, seconds, reason = tester.test(command["ranks"], command["prefix"], command["limit_s"])
        answer = {"test": command["test"], "state": state, "seconds": seconds, "reason": reason}
        os.write(ours, json.dumps(answer).encode() + b"\n")
    return 0


if __name__ == "__main__":
    code = main()
    # Not through the destructors: a group that failed can hang or abort there.
    os._exit(code)
