"""Whether `unhang reproduce` makes a failing stand-alone program of a hang: the reports that the runs left behind."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.hangbench.jobs import run_limited

LIMIT_S, MOST_LINES, MOST_RANKS = 60, 60, 4


def is_candidate(row: Mapping[str, Any]) -> bool:
    """A run that stood still: what `reproduce` is for."""
    return not row["is_healthy"] and row["said"]["outcome"] == "hang"


def reproduce(row: Mapping[str, Any], report: Path) -> dict[str, Any]:
    """One reproduction, and whether it is what was asked for.

    Blocks: up to `LIMIT_S` and some seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hangbench-") as name:
        folder, program = Path(name), Path(name) / "repro.py"
        command = [sys.executable, "-m", "unhang", "reproduce", str(report), "--output", str(program)]
        command += ["--limit", str(LIMIT_S), "--format", "json"]
        done = run_limited(command, folder, LIMIT_S + 20)
        lines = len(program.read_text().splitlines()) if program.exists() else 0
        made = _made(done.output)
        return {
            "name": row["name"],
            "kind": row["kind"],
            "is_right": (
                done.exit_code == 0
                and bool(made.get("fails_the_same_way"))
                and 0 < lines <= MOST_LINES
                and len(made.get("ranks") or ()) <= MOST_RANKS
                and done.seconds <= LIMIT_S
            ),
            "lines": lines,
            "ranks": len(made.get("ranks") or ()),
            "seconds": round(done.seconds, 1),
            "exit_code": done.exit_code,
            "said": "" if made else done.output[-500:],
        }


def _made(output: str) -> dict[str, Any]:
    """The JSON at the end of what it printed."""
    start = output.find("{")
    if start < 0:
        return {}
    try:
        made = json.JSONDecoder().raw_decode(output[start:])[0]
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}
