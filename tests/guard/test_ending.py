"""The end of the groups, and the limits of our own work; what real jobs do is in tests/ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.slowness import slowness
from torch.nn.parallel import DistributedDataParallel

from unhang.inside.guards import ending


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_work_within_its_limit() -> None:
    never = threading.Event()
    assert ending.limited(lambda: 3, 10.0, 4) == 3
    assert ending.limited(lambda: 1 // 0, 10.0, 4) == 4
    assert ending.limited(lambda: int(never.wait(20)), 0.05, 4) == 4
    never.set()


def test_without_a_thread_there_is_the_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ending.limited(lambda: 3, 10.0, 4) == 4


def test_no_group_no_work() -> None:
    assert ending.destroy(1.0)


@pytest.mark.usefixtures("group")
def test_a_wrapped_model_keeps_its_parameters_and_lets_go_of_the_groups() -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert ending.destroy(10.0)
    assert not dist.is_initialized()
    assert model.process_group is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.usefixtures("group")
def test_a_destruction_that_does_not_come_back_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = threading.Event()
    registered: list[Any] = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: release.wait(20))
    monkeypatch.setattr(ending.atexit, "register", lambda *work: registered.append(work))
    assert not ending.destroy(0.05)
    release.set()
    assert registered
    assert "destroy_process_group did not return within 0 s; it is left behind" in capsys.readouterr().err


def test_an_interpreter_that_stands_still_is_ended() -> None:
    """The lock of the interpreter is never given up: only a timer outside Python can end this."""
    program = f"""
        import torch.distributed as dist, sys, tempfile
        from unhang.inside.guards import ending
        ending.LAST_RESORT_S = {slowness()}
        dist.init_process_group("gloo", init_method="file://" + tempfile.mkdtemp() + "/store", rank=0, world_size=1)
        def stand_still():
            sys.setswitchinterval(1000)
            "".join(["a"] * 10) and pow(7, 10**9)
        dist.destroy_process_group = stand_still
        ending.destroy(0.5)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "stand_still" in done.stderr


def test_leaving_at_once_takes_the_children_along() -> None:
    program = """
        import multiprocessing, sys, time
        from unhang.inside.guards.ending import leave_now
        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
            child.start()
            print(child.pid, end="")
            leave_now(5)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 5, done.stderr
    state, until = Path(f"/proc/{done.stdout}/stat"), time.monotonic() + 20
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < until:
        time.sleep(0.02)  # it has its signal, and has yet to come to it
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
