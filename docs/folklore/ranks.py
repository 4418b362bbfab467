"""Ranks for the experiments: forked from a process that has imported torch once, each with a limit, results through a pipe."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine; else gloo looks up its name, which may take seconds

import torch
import torch.distributed as dist

Result = dict[str, Any]
LIMIT_S = 30.0


def import_for_ddp() -> None:
    """Imports what DDP will want, once here instead of in every rank."""
    for name in ("torch._dynamo", "torch.distributed.algorithms.join"):
        importlib.import_module(name)


def run_ranks(world_size: int, be_rank: Callable[[int], Result], timeout_s: float = 10.0) -> list[Result]:
    """Runs `be_rank(rank)` in so many processes, members of a gloo group with this timeout.

    An exception becomes {"error": its first line, "seconds": after how long}. A rank that takes half a minute is ended, and
    its result is {"ended": True}.
    """
    with tempfile.TemporaryDirectory(prefix="folklore-") as folder:
        children = {}
        sys.stdout.flush()
        for rank in range(world_size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _live(rank, world_size, be_rank, timeout_s, f"file://{folder}/store", writer)
            os.close(writer)
            children[rank] = (pid, reader)
        return [_result_of(pid, reader, time.monotonic() + LIMIT_S) for pid, reader in children.values()]


def _live(
    rank: int, world_size: int, be_rank: Callable[[int], Result], timeout_s: float, store: str, writer: int
) -> None:
    """The life of a rank. Does not return."""
    began = time.monotonic()
    try:
        torch.set_num_threads(1)
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=limit)
        began = time.monotonic()
        result = be_rank(rank)
    except Exception as error:  # noqa: BLE001 - what a rank dies of is the result
        first = str(error).strip().splitlines() or [""]
        result = {"error": f"{type(error).__name__}: {first[0][:200]}", "seconds": time.monotonic() - began}
    os.write(writer, json.dumps(result).encode())
    os._exit(0)


def _result_of(pid: int, reader: int, deadline: float) -> Result:
    data = b""
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            part = os.read(reader, 65536)
            if not part:
                break
            data += part
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it has told its result, or its time is over
        os.waitpid(pid, 0)
    return json.loads(data) if data else {"ended": True}


def start(measure: Callable[[bool], Result], is_quick: bool) -> tuple[int, int]:
    """Starts an experiment in a process of its own, so that no thread of torch is here when the next one forks."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            os.write(writer, json.dumps(measure(is_quick)).encode())
        except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
            traceback.print_exc()
        os._exit(0)
    os.close(writer)
    return pid, reader


def outcome_of(started: tuple[int, int]) -> Result:
    """What the experiment measured; waits for it, at most a minute."""
    result = _result_of(*started, time.monotonic() + 2 * LIMIT_S)
    if "ended" in result:
        raise RuntimeError("an experiment did not come to its end")
    return result


def tell(title: str, result: Result) -> None:
    """Prints what was measured."""
    print(title)
    for name, value in result.items():
        print(f"  {name.replace('_', ' '):<58} {f'{value:.4g}' if isinstance(value, float) else value}")


@contextmanager
def variables(names: Sequence[str], is_set: bool) -> Iterator[None]:
    """Sets environment variables to 1 for the ranks that are made meanwhile."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(names, "1") if is_set else {})
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """The median time of several calls."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]
