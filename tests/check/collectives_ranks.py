"""Ranks for the tests of verified collectives: members in threads, each with a real worker, and faults in one of them."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from unhang.check.collectives import Progress, Rendezvous, run_collectives
from unhang.check.collectives.suite import CaseResult, Limits, Stuck

SMALL_BYTES = 1 << 16
_FAULT = """
import sys
if "cases" in sys.orig_argv and "--rank={rank}" in sys.orig_argv:
{body}
"""


@contextmanager
def store() -> Iterator[str]:
    """A store server as the member of rank 0 holds it."""
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    yield f"127.0.0.1:{server.port}"
    del server


def run_members(
    world_size: int,
    names: Sequence[str],
    limits: Limits | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> dict[int, tuple[CaseResult, ...]]:
    """All members at once, as the ranks of a job would be."""
    results: dict[int, tuple[CaseResult, ...]] = {}
    limits = limits or Limits(case_s=20)

    def be(rank: int, address: str) -> None:
        member = Rendezvous(rank, world_size, address, "test")
        results[rank] = run_collectives(member, names, SMALL_BYTES, limits, tell)

    # msgspec makes a type ready at its first use; two threads that do so at the same time crash the process.
    for kind in (CaseResult, Stuck):
        with suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    with store() as address:
        threads = [threading.Thread(target=be, args=(rank, address)) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def put_fault(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, body: str) -> None:
    """Lets the worker of one rank run `body` before anything else: a `sitecustomize` on its path."""
    text = _FAULT.format(rank=rank, body=textwrap.indent(textwrap.dedent(body), "    "))
    (folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


ON_TORCH = """
import importlib.abc
class WhenTorchIsThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "unhang.check.collectives.operations":
            import time, torch, torch.distributed as dist
            real_all_reduce, real_mm = dist.all_reduce, torch.mm
{body}
sys.meta_path.insert(0, WhenTorchIsThere())
"""


def on_torch(body: str) -> str:
    """A fault that patches torch just before the suite imports it; `real_all_reduce` and `real_mm` are torch's own."""
    return ON_TORCH.format(body=textwrap.indent(textwrap.dedent(body), " " * 12))
