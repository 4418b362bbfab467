"""Runs the programs of this folder as real jobs, and reads what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.slowness import slowness

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


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
    try:
        done = warm.run(command, cwd, limit_s, {**inherited, **settings})
    except subprocess.TimeoutExpired:
        raise AssertionError(f"no end within {limit_s} s") from None
    return Ended(done.returncode, done.stdout + done.stderr)


def run_ranks(ranks: int, program: str, *arguments: object, cwd: Path, **environment: str) -> Ended:
    """Runs a program of this folder in so many ranks."""
    return run(warm.forkrun("--eager", ranks, PROGRAMS / program, *arguments), cwd, **environment)


def diagnose(report_dir: Path) -> dict[str, Any]:
    """What `unhang diagnose` says of a folder."""
    ended = run([*warm.UNHANG, "diagnose", "--format", "json", str(report_dir)], report_dir.parent)
    assert ended.exit_code in (0, 1, 3), ended.output
    report: dict[str, Any] = json.loads(ended.output[ended.output.index("{") :])
    return report
