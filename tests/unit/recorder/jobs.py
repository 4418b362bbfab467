"""Starts small real jobs with the recorder in them and reads what it wrote."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.ports import free_port

import unhang.inside.recorder

BOOTSTRAP = Path(unhang.inside.recorder.__file__).parent / "bootstrap"
LIMIT_S = 40

FORK_LAUNCHER = """
import os, runpy, sys, traceback
import torch, torch.distributed
if "DistributedDataParallel" in open(sys.argv[1]).read():
    import torch._dynamo  # which it loads; here once, not in every rank
children = {}
for rank in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=sys.argv[2])
        code = 0
        try:
            runpy.run_path(sys.argv[1], run_name="__main__")
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    children[pid] = rank
codes = [0] * len(children)
for _ in children:
    pid, status = os.wait()
    codes[children[pid]] = os.waitstatus_to_exitcode(status)
print("codes", codes, flush=True)
os._exit(0)  # an interpreter takes half a second to take torch apart
"""


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def codes(self) -> list[int]:
        """The exit codes of a forked job's ranks; negative for signals."""
        return [int(c) for c in re.findall(r"-?\d+", self.stdout.rpartition("codes")[2])]


def environment(run_dir: Path | str, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")}
    return {
        **kept,
        "UNHANG_RUN_DIR": str(run_dir),
        "UNHANG_TRACER_PID": str(os.getpid()),
        "PYTHONPATH": str(BOOTSTRAP),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def python(*arguments: str | Path, env: Mapping[str, str]) -> Ended:
    """Run to the end."""
    with started(*arguments, env=env) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, out, err)


def warm_python(script: Path, *arguments: object, env: Mapping[str, str]) -> Ended:
    """The same from a process that has imported torch and the recorder: not for how an interpreter begins or is taken apart."""
    done = warm.run([sys.executable, str(script), *map(str, arguments)], script.parent, LIMIT_S, env)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def started(*arguments: str | Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process group of its own, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            pass
        process.communicate()


def forked(tmp_path: Path, run_dir: Path, script: str, ranks: int = 2, **more: str) -> Ended:
    """Run a script once per rank, forked from a process that has imported torch and the recorder."""
    launcher = write(tmp_path, "launcher.py", FORK_LAUNCHER)
    return warm_python(launcher, write(tmp_path, "train.py", script), ranks, env=environment(run_dir, **more))


def rank_folder(run_dir: Path, rank: int) -> Path:
    (found,) = run_dir.glob(f"ranks/r{rank}-*")
    return found


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def header(folder: Path) -> tuple[int, ...]:
    return struct.unpack_from("<64Q", (folder / "page.bin").read_bytes())


@dataclass(frozen=True)
class Record:
    """One record of the ring."""

    number: int
    kind: int
    peer: int
    index: int
    started_ns: int
    ended_ns: int
    tag: int
    group: str
    detail: str
    frames: list[str]
    awaited_us: int


def ring(folder: Path) -> list[Record]:
    page = (folder / "page.bin").read_bytes()
    found = []
    for i in range(256):
        number, kind, peer, index, begun, ended, tag, _, text = struct.unpack_from(
            "<QqqqQQqq192s", page, 8192 + i * 256
        )
        if number:
            group, detail, frames = text.rstrip(b"\0").decode().split("\x1f")
            places, kind, awaited = frames.split("|"), kind & 255, kind >> 8
            found.append(Record(number - 1, kind, peer, index, begun, ended, tag, group, detail, places, awaited))
    return sorted(found, key=lambda record: record.number)


def ask_server(folder: Path, timeout_s: float = 3) -> bytes:
    """POST /handler/fr_trace_json to torch's worker server."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout_s)
        s.connect(str(folder / "fr.sock"))
        s.sendall(b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        parts = []
        while part := s.recv(65536):
            parts.append(part)
    return b"".join(parts)


def wait_for(condition: Any, limit_s: float = 25) -> Any:
    """Ask until the answer is true. The jobs are real processes: there is no clock to pass in."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            found = condition()
        except (OSError, ValueError):
            found = None
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{condition} not within {limit_s} s")
