"""Runs the training with faults in it, under `unhang run` or without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.slowness import slowness

HERE = Path(__file__).parent
TRAINING = HERE / "training.py"
RANKS = 3
UNHANG = [*warm.UNHANG, "inject"]
STALL_AFTER_S = 2.0


def unhang_run(stall_after_s: float = STALL_AFTER_S) -> list[str]:
    """`unhang run` with limits for this machine; the folder of the report comes next."""
    limits = {"--stall-after": stall_after_s, "--abort-after": 1.0}
    given = [word for name, limit_s in limits.items() for word in (name, str(limit_s * slowness()))]
    return [*warm.UNHANG, "run", *given, "--report-dir"]


@dataclass(frozen=True)
class Done:
    """What a job left behind."""

    exit_code: int
    record: list[dict[str, Any]]
    report: dict[str, Any]
    stdout: str
    stderr: str

    def __str__(self) -> str:
        findings = json.dumps(self.report.get("findings"), indent=1)
        return f"exit code {self.exit_code}\n{self.record}\n{findings}\n{self.stderr[-3000:]}"


def job(*arguments: object, port: int | None = None, script: Path = TRAINING, ranks: int = RANKS) -> list[str]:
    """The command of the training."""
    chosen = ["--port", str(port)] if port else []
    return warm.forkrun("--eager", *chosen, ranks, script, *arguments)


def inject(
    faults: Sequence[str],
    command: Sequence[str],
    folder: Path,
    *,
    is_watched: bool = True,
    seed: int = 0,
    stall_after_s: float = STALL_AFTER_S,
) -> Done:
    """Runs a command with faults in it; where it is watched, `unhang run` stands between.

    Blocks: up to 50 s, longer on a busy machine.
    """
    record, report = folder / "record.jsonl", folder / "report" / "report.json"
    wanted = [part for fault in faults for part in ("--fault", fault)]
    watched = [*unhang_run(stall_after_s), str(report.parent), "--"] if is_watched else []
    injected = [*UNHANG, *wanted, "--seed", str(seed), "--record", str(record), "--"]
    done = warm.run([*injected, *watched, *command], folder, 50 * slowness())
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    found = json.loads(report.read_text()) if report.exists() else {}
    return Done(done.returncode, lines, found, done.stdout, done.stderr)


def line_of(text: str) -> int:
    """The number of the one line of the training that holds a text."""
    numbers = [n for n, line in enumerate(TRAINING.read_text().splitlines(), 1) if text in line]
    assert len(numbers) == 1, (text, numbers)
    return numbers[0]
