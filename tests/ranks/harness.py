"""Runs a job under `unhang run` and compares the report with the truth."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.slowness import slowness

from .faults import HERE, Case

HUNG_JOB_ENDED = 124
_TOKEN = "UNHANG_TEST_JOB"


@dataclass(frozen=True)
class Result:
    """What a job left behind."""

    report: dict[str, Any]
    report_dir: Path
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        text = self.report_dir / "report.txt"
        shown = text.read_text() if text.exists() else json.dumps(self.report, indent=1)
        return f"exit code {self.exit_code} after {self.seconds:.1f} s\n{shown}\nstderr:\n{self.stderr[-4000:]}"


def run_job(case: Case, tmp_path: Path, limit_s: float = 50, start: Callable[..., warm.Job] = warm.popen) -> Result:
    """Runs the case in `tmp_path`.

    Blocks: up to `limit_s`, longer on a busy machine. Raises: AssertionError if it takes longer, leaves a process or writes no report.
    """
    report_dir, token, started = tmp_path / "report", uuid.uuid4().hex, time.monotonic()
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, **case.environment, _TOKEN: token}
    with _taken_port() if case.port_taken else contextlib.nullcontext() as port:
        process = start([*_unhang(), *_options(case, report_dir), "--", *_command(case, port)], work, environment)
        stdout, stderr = _communicate(process, token, limit_s)
    left = _survivors(token, process)
    warm.end(process)
    _kill(left)
    assert not left, f"processes of the job survive: {left}\n{stderr[-4000:]}"
    return result_of(report_dir, process.returncode or 0, stdout, stderr, time.monotonic() - started)


def result_of(report_dir: Path, exit_code: int, stdout: str, stderr: str, seconds: float) -> Result:
    """What a job left behind. Raises: AssertionError if it wrote no report."""
    report = report_dir / "report.json"
    assert report.exists(), f"no report; exit code {exit_code}\n{stdout[-2000:]}\n{stderr[-4000:]}"
    return Result(json.loads(report.read_text()), report_dir, exit_code, stdout, stderr, seconds)


def check_fault(case: Case, result: Result) -> None:
    """Asserts that the report tells the truth about a job with a fault."""
    report = result.report
    assert report["outcome"] == case.outcome, result
    assert report["findings"], result
    first = report["findings"][0]
    assert first["cause"] == case.cause, result
    named = set(first["culprit_ranks"])
    if case.some_culprits:
        assert named, result
        assert named <= set(case.culprits), result
    else:
        assert named == set(case.culprits), result
    assert not named & set(first["victim_ranks"]), result
    assert first["consequence_of"] is None, result
    _check_attempts(case, result)
    _check_location(case, first["location"], result)
    _check_end(case, result)


def _check_attempts(case: Case, result: Result) -> None:
    earlier = result.report.get("earlier", [])
    found = [(a["findings"][0]["cause"], *a["findings"][0]["culprit_ranks"]) for a in earlier if a["findings"]]
    assert tuple(found) == case.earlier, result
    assert len(found) == len(earlier), result


def _check_location(case: Case, location: dict[str, Any] | None, result: Result) -> None:
    if location is None:
        assert case.location != "required", result
    elif case.location != "ignored":
        assert (Path(location["file"]).name, location["line"]) in case.truth(), f"truth: {case.truth()}\n{result}"


def _check_end(case: Case, result: Result) -> None:
    if case.outcome == "hang" and case.ends_itself:
        assert result.exit_code not in (0, HUNG_JOB_ENDED), result
    elif case.outcome == "hang":
        assert result.exit_code == HUNG_JOB_ENDED, result
        assert result.report["hang"] is not None, result
        assert case.kind in (None, result.report["hang"]["kind"]), result
    elif case.outcome == "crash":
        assert result.exit_code not in (0, HUNG_JOB_ENDED), result
    else:
        assert result.exit_code == 0, result


def check_healthy(result: Result, case: Case | None = None) -> None:
    """Asserts that nobody is accused; of `case`, that the attempts before the last are told."""
    if case is not None:
        _check_attempts(case, result)
    assert result.report["findings"] == [], result
    assert result.report["outcome"] == "clean", result
    assert result.exit_code == 0, result


def check_files(result: Result) -> None:
    """Asserts that the report is complete, whatever became of the job."""
    assert result.report["schema"] == "unhang.report/1"
    for name in ("report.html", "report.txt", "bundle"):
        assert (result.report_dir / name).exists(), f"{name} is missing\n{result}"


def _unhang() -> list[str]:
    script = Path(sys.executable).with_name("unhang")
    return [str(script)] if script.exists() else [sys.executable, "-m", "unhang.cli.main"]


def _options(case: Case, report_dir: Path) -> list[str]:
    limits = {"--stall-after": case.stall_after_s, "--abort-after": case.abort_after_s}
    # Each such wait is spent in full: they grow only where the machine is really busy.
    busy = max(1.0, slowness() / 2)
    given = [(name, str(limit_s * busy)) for name, limit_s in limits.items() if limit_s is not None]
    return ["run", "--report-dir", str(report_dir), *case.watching, *itertools.chain(*given)]


def _command(case: Case, port: int | None) -> list[str]:
    if case.launcher == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    else:
        # One of those with optimizers has the compiler loaded, as a real job has, which costs 1.3 s of CPU time.
        eager = [] if case.name == "ddp_with_workers" else ["--eager"]
        options = [*(["--port", str(port)] if port else []), *eager, *case.launching]
        launcher = [str(HERE / "forkrun.py"), *options, str(case.ranks)]
    return [sys.executable, *launcher, str(case.path), *case.args]


@contextlib.contextmanager
def _taken_port() -> Iterator[int]:
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def _communicate(process: warm.Job, token: str, limit_s: float) -> tuple[str, str]:
    limit_s *= slowness()
    try:
        return process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(_processes(token, process))
        stdout, stderr = process.communicate(timeout=5)
        raise AssertionError(f"no end within {limit_s} s\n{stdout[-2000:]}\n{stderr[-4000:]}") from None


def _processes(token: str, process: warm.Job | None = None) -> dict[int, str]:
    """The living processes that were started with the token in their environment, with their command lines; all of a warm job."""
    if isinstance(process, warm.WarmJob):
        return process.left()
    wanted, found = f"{_TOKEN}={token}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return found


def _survivors(token: str, process: warm.Job | None = None, patience_s: float = 2) -> dict[int, str]:
    deadline = time.monotonic() + patience_s * slowness()
    while (left := _processes(token, process)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def watchers(process: warm.Job) -> list[int]:
    """The pids of the watchers of one `unhang run`."""
    found = []
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("unhang-watcher"):
                found.append(int(pid))
    return found


def _kill(pids: dict[int, str]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
