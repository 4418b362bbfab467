"""Runs one job of the benchmark under `unhang run`, within a limit, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.hangbench.cases import HERE, RANKS, TABLE, Run, truth_with
from benchmarks.hangbench.score import HIT, NOT_RUN, Said, Score, said_in, score_fault, score_healthy

FORKRUN = HERE.parents[1] / "tests" / "ranks" / "forkrun.py"
INJECT, UNHANG_RUN = ("-m", "unhang", "inject"), ("-m", "unhang", "run")
_TOKEN = "UNHANG_HANGBENCH"
_TAIL = 4000
_TRIES = 3


@dataclass(frozen=True)
class Done:
    """What a job left behind. `exit_code` is None where the limit ended it."""

    exit_code: int | None
    output: str
    seconds: float


def launched(program: Path, args: Sequence[str], eager: bool = True) -> list[str]:
    """The command of a job of four ranks: torch is imported once, then the ranks are forked."""
    flags = ["--eager"] if eager else []
    return [sys.executable, str(FORKRUN), *flags, str(RANKS), str(program), *args]


def run_limited(command: Sequence[str], cwd: Path, limit_s: float, more: Mapping[str, str] | None = None) -> Done:
    """Runs a command; whatever it started has ended afterwards.

    Blocks: up to `limit_s` and some seconds.
    """
    token, started = uuid.uuid4().hex, time.monotonic()
    with (cwd / "output.txt").open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(more or {}), _TOKEN: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            seconds = time.monotonic() - started
            _end_all(token)
            process.wait(10)
        output.seek(0)
        return Done(code, output.read(), seconds)


def _end_all(token: str) -> None:
    """Ends every process that bears the token in its environment."""
    wanted = f"{_TOKEN}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


@contextlib.contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    """A short-lived folder; its report is copied to `keep` before it goes."""
    with tempfile.TemporaryDirectory(prefix="hangbench-", ignore_cleanup_errors=True) as name:
        yield Path(name)
        if keep is not None and (Path(name) / "report").exists():
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(Path(name) / "report", keep)


def read_record(path: Path) -> list[dict[str, Any]]:
    """What `unhang inject` recorded; nothing where nothing happened."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def command_of(run: Run, folder: Path, job: Sequence[str]) -> list[str]:
    """The whole command: the fault, the watcher, the job."""
    watched = [sys.executable, *UNHANG_RUN, *run.options, "--report-dir", str(folder / "report"), "--", *job]
    return injected(run, folder, watched)


def injected(run: Run, folder: Path, inner: Sequence[str]) -> list[str]:
    """A command with the run's fault around it."""
    if not run.fault:
        return list(inner)
    return [sys.executable, *INJECT, "--fault", run.fault, "--record", str(folder / "record.jsonl"), "--", *inner]


def run_once(run: Run, keep: Path | None = None) -> dict[str, Any]:
    """Runs the job and judges the verdict; the row of the results. A race that was not lost is run again.

    Blocks: up to the limit of the table, three times at most.
    """
    for _ in range(_TRIES - 1):
        row = _run(run, keep)
        if row["score"]["result"] != NOT_RUN or not _is_race(run):
            return row
    return _run(run, keep)


def _is_race(run: Run) -> bool:
    return run.truth is not None and run.truth.is_any_rank


def _run(run: Run, keep: Path | None) -> dict[str, Any]:
    with work_folder(keep) as folder:
        done = run_limited(command_of(run, folder, launched(run.program, run.args)), folder, TABLE["limit_s"])
        path = folder / "report" / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        record = read_record(folder / "record.jsonl")
        told_at_s = path.stat().st_mtime if path.exists() else None
        row = _row(run, done, report, record, told_at_s)
        if row["score"]["result"] != HIT:
            output = done.output
            for place in (HERE.parents[1], folder, sys.prefix, sys.base_prefix):
                output = output.replace(f"{place}/", "")
            row["output"] = output[-_TAIL:]
        return row


def _row(
    run: Run, done: Done, report: Mapping[str, Any], record: list[dict[str, Any]], told_at_s: float | None
) -> dict[str, Any]:
    said = said_in(report)
    happened = [event for event in record if event["event"] == "happened"]
    truth = truth_with(run.truth, record) if run.truth else None
    score = score_fault(truth, said, done.exit_code) if truth else score_healthy(said)
    if (run.fault and not happened) or (_is_race(run) and done.exit_code == 0):
        score = Score(NOT_RUN)
    onset_s = happened[0]["time_ns"] / 1e9 if happened else None
    return {
        "name": run.name,
        "kind": run.kind,
        "story": run.story,
        "is_healthy": run.is_healthy,
        "fault": run.fault or " ".join(run.args),
        "widened": run.widened,
        "truth": _plain(asdict(truth)) if truth else None,
        "said": _plain(asdict(said)),
        "score": asdict(score),
        "hang": report.get("hang"),
        "findings": len(report.get("findings") or []),
        "verdict_after_s": round(told_at_s - onset_s, 2) if told_at_s and onset_s else None,
        "exit_code": done.exit_code,
        "seconds": round(done.seconds, 1),
    }


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(value) if isinstance(value, frozenset) else value for key, value in content.items()}


def said_of(row: Mapping[str, Any]) -> Said:
    """The answer in a row."""
    said = dict(row["said"])
    return Said(**{**said, "ranks": frozenset(said["ranks"]), "line": tuple(said["line"]) if said["line"] else None})
