"""Runs a job under `run_job` in a process of its own, with a stub in the watcher's place."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.slowness import slowness

TIMEOUT_S = 20.0

IDLE_WATCHER = """
def watch(options, run_dir, root_pid, to_supervisor, from_supervisor):
    (run_dir / "agent.pid").write_text(f"{os.getpid()} {root_pid}")
    while data := os.read(from_supervisor, 100):
        if b"end" in data:
            (run_dir / "told-to-end").touch()
            return
"""

_DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
{watcher}
from unhang.watch import agent_process, supervise
agent_process.watch = watch
from unhang.watch import RunOptions
{patch}
run_dir = Path({run_dir!r})
options = RunOptions(report_dir=run_dir, env=dict(os.environ), **{options!r})
end = supervise.run_job(sys.argv[1:], options, run_dir, {{"command": sys.argv[1:]}})
(run_dir / "end.json").write_text(json.dumps(end.__dict__))
sys.exit(end.exit_code)
"""


def until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Waits until something is so, and returns it."""
    deadline = time.monotonic() + timeout_s * slowness()
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def python(code: str) -> list[str]:
    """A job that runs `code`, starting fast: no site packages."""
    return [sys.executable, "-I", "-S", "-c", code]


@dataclass
class Jobs:
    """Starts jobs under a supervisor and ends what is left of them after the test."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def file(self, name: str) -> Path:
        return self.folder / name

    def line(self, command: list[str], watcher: str = IDLE_WATCHER, patch: str = "", **options: Any) -> list[str]:
        self.run_dir.mkdir(exist_ok=True)
        code = _DRIVER.format(watcher=watcher, patch=patch, run_dir=str(self.run_dir), options=options)
        return [sys.executable, "-c", code, *command]

    def start(self, command: list[str], watcher: str = IDLE_WATCHER, patch: str = "", **how: Any) -> Any:
        options = how.pop("options", {})
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
        process = subprocess.Popen(self.line(command, watcher, patch, **options), **how)
        self.started.append(process)
        return process

    def run(self, command: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
        process = self.start(command, **how)
        out, err = process.communicate(timeout=TIMEOUT_S * slowness())
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def pid_in(self, name: str) -> int:
        """The pid that a process of the job wrote into a file; it is ended after the test at the latest."""
        pid = int(until(lambda: self.file(name).exists() and self.file(name).read_text().strip()).split()[0])
        self.pids.append(pid)
        return pid

    def agent_pid(self) -> int:
        return self.pid_in("run/agent.pid")

    def job_file(self) -> dict[str, Any]:
        content = json.loads((self.run_dir / "job.json").read_text())
        assert isinstance(content, dict)
        return content

    def close(self) -> None:
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT_S * slowness())
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """The starter of jobs."""
    starter = Jobs(tmp_path)
    yield starter
    starter.close()


class Terminal:
    """A pseudo-terminal in which a session runs."""

    def __init__(self, rows: int = 33, columns: int = 77) -> None:
        self.ours, self.theirs = os.openpty()
        self.seen = b""
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.ours, (rows, columns))

    def how(self) -> dict[str, Any]:
        """Arguments for Popen: this terminal is the controlling one."""
        return {
            "stdin": self.theirs,
            "stdout": self.theirs,
            "stderr": self.theirs,
            "start_new_session": True,
            "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        }

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def expect(self, text: bytes) -> None:
        """Reads until `text` appears."""
        until(lambda: text in self.read())

    def read(self) -> bytes:
        """All that was written so far."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                break
            self.seen += data
        return self.seen

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of 33 x 77."""
    it = Terminal()
    yield it
    it.close()
