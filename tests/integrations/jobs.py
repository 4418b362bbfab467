"""Runs the programs of this folder as real jobs, and reads what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.slowness import slowness

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
FORKRUN = HERE.parent / "ranks" / "forkrun.py"
UNHANG = [sys.executable, "-m", "unhang"]


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    exit_code: int
    output: str


def run(command: list[str], cwd: Path, limit_s: float = 50, **environment: str) -> Ended:
    """Runs a command to its end; what it leaves running is ended.

    Blocks: up to `limit_s`, longer on a busy machine. Raises: AssertionError if it takes longer.
    """
    limit_s *= slowness()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "TORCH_"))}
    # Nothing of the frameworks' caches and tokens in the home of whoever runs the tests.
    settings = {"HOME": str(cwd), "HF_HUB_OFFLINE": "1", "RAY_DEDUP_LOGS": "0", "DS_ACCELERATOR": "cpu", **environment}
    process = subprocess.Popen(
        command, cwd=cwd, env={**inherited, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=5 * slowness())
        raise AssertionError(f"no end within {limit_s} s\n{output[-4000:]}") from None
    return Ended(process.returncode, output)


def run_ranks(ranks: int, program: str, *arguments: object, cwd: Path, **environment: str) -> Ended:
    """Runs a program of this folder in so many ranks."""
    command = [sys.executable, str(FORKRUN), "--eager", str(ranks), str(PROGRAMS / program), *map(str, arguments)]
    return run(command, cwd, **environment)


def diagnose(report_dir: Path) -> dict[str, Any]:
    """What `unhang diagnose` says of a folder."""
    ended = run([*UNHANG, "diagnose", "--output-format", "json", str(report_dir)], report_dir.parent)
    assert ended.exit_code in (0, 1, 3), ended.output
    report: dict[str, Any] = json.loads(ended.output[ended.output.index("{") :])
    return report
