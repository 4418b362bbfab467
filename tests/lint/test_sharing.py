"""Functions that are followed by several processes: the same findings as by one, also where they tell each other what they learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from unhang.lint import sharing
from unhang.lint.cards import LintSettings
from unhang.lint.checking import LintResult, lint_paths
from unhang.lint.link import Link

# The threads of a runner of tests do nothing that a fork could leave half done.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
# Each file is in the share of another process. `loop.py` is in the first; what makes its objects, and the signal, are in later ones.
_FILES = {
    "loop.py": """
import torch.distributed as dist

class Loop:
    def __init__(self, net, rank):
        self.net = net
        self.is_first = rank == 0

    def step(self, batch):
        if self.is_first:
            self.net(batch)

    def until_told(self, job, batches):
        for batch in batches:
            if job.is_told_to_stop:
                break
            dist.all_reduce(batch)
""",
    "make.py": """
from torch.nn.parallel import DistributedDataParallel
from loop import Loop

def run(net, batches, rank):
    loop = Loop(DistributedDataParallel(net), rank)
    for batch in batches:
        loop.step(batch)
""",
    "stop.py": """
import signal
import torch.distributed as dist

class Job:
    def __init__(self):
        self.is_told_to_stop = False
        signal.signal(signal.SIGTERM, self.on_signal)

    def on_signal(self, number, frame):
        self.is_told_to_stop = True

    def end(self):
        dist.barrier()
""",
    "wait.py": """
import torch.distributed as dist

def wait(rank):
    if rank == 0:
        dist.barrier()
""",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files, small as they are shared among as many processes as are asked for."""
    monkeypatch.setattr(sharing, "_FEW", 1)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[sharing.Roots]:
    """The shares of the processes that were started beside the first one."""
    shares: list[sharing.Roots] = []

    class Counted(sharing.Helper):
        def __init__(self, link: Link, share: sharing.Roots, others: Sequence[sharing.Helper]) -> None:
            shares.append(share)
            super().__init__(link, share, others)

    monkeypatch.setattr(sharing, "Helper", Counted)
    return shares


def _found(project: Path, jobs: int) -> LintResult:
    return lint_paths([str(project)], LintSettings(depth=9), None, jobs)


def test_several_processes_find_what_one_finds(project: Path, started: list[sharing.Roots]) -> None:
    alone = _found(project, 1)
    assert {(os.path.basename(path), f.code) for path, f in alone.found} >= {
        ("loop.py", "LNT103"), ("loop.py", "LNT106"), ("wait.py", "LNT101"),
    }  # fmt: skip
    for jobs in (2, 3, 4):
        started.clear()
        assert _found(project, jobs) == alone
        assert len(started) == jobs - 1


def _ends_at_once(*given: Any) -> None:
    os._exit(9)


def _ends_after_the_first_turn(link: Any, share: Any, pipe: Any, ours: Any) -> None:
    sharing._follow(link, share, 0)
    pipe.send(sharing._learned(link))
    os._exit(9)


def _sleeps(link: Any, share: Any, pipe: Any, ours: Any) -> None:
    pipe.poll(600)


@pytest.mark.parametrize("helps", [_ends_at_once, _ends_after_the_first_turn, _sleeps])
def test_what_a_process_leaves_undone_the_first_one_does(
    project: Path, monkeypatch: pytest.MonkeyPatch, helps: Callable[..., None], started: list[sharing.Roots]
) -> None:
    alone = _found(project, 1)
    monkeypatch.setattr(sharing, "_LIMIT", 0.5)
    monkeypatch.setattr(sharing, "_help", helps)
    assert _found(project, 2) == alone
    assert len(started) == 1
