"""Lines per second of `unhang lint`, cold and warm, beside ruff and pyflakes in the same run.

    python benchmarks/lint_speed.py [FOLDER...]     default: the installed torch.distributed, torch and transformers

Cold: no cache at all. Warm: nothing has changed since the last run. CPU seconds are of all processes; memory is the largest process's.
Folders below 300,000 lines are read in three rounds, the tools in turns; the least time of each counts, as other work only adds to it.
The figures stand in benchmarks/results/lint_speed.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "lint_speed.json"
ROUNDS, FEW = 3, 300_000


def measured(command: Sequence[str], cwd: str) -> tuple[float, float, float]:
    """Wall-clock and CPU seconds of a command and its children, and MiB of the largest of them so far."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu, after.ru_maxrss / 1024


def lines_in(folder: Path) -> int:
    """Lines of Python."""
    return sum(p.read_bytes().count(b"\n") for p in folder.rglob("*.py") if p.is_file())


def main() -> None:
    site = Path(importlib.util.find_spec("click").origin).parents[1]  # type: ignore[union-attr, arg-type]
    given = [Path(a).resolve() for a in sys.argv[1:]]
    folders = given or [
        p for p in (site / "torch" / "distributed", site / "torch", site / "transformers") if p.is_dir()
    ]
    python = sys.executable
    load = round(os.getloadavg()[0], 1)
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "load_before": load, "folders": {}}
    print(f"{figures['cores']} cores, load {load}")
    for folder in folders:
        lines = lines_in(folder)
        print(f"\n{folder.name}: {lines:,} lines")
        with tempfile.TemporaryDirectory() as own:
            lint = [python, "-m", "unhang", "lint", "--statistics", str(folder)]
            rows = [("unhang lint, cold", lint), ("unhang lint, warm", lint)]
            ruff = shutil.which("ruff", path=f"{Path(python).parent}:{os.environ['PATH']}")
            if ruff:
                rows.append(
                    ("ruff check --isolated --no-cache", [ruff, "check", "--isolated", "--no-cache", "-q", str(folder)])
                )
            if importlib.util.find_spec("pyflakes"):
                rows.append(("pyflakes", [python, "-m", "pyflakes", str(folder)]))
            best: dict[str, tuple[float, float, float]] = {}
            for _ in range(1 if lines > FEW else ROUNDS):
                shutil.rmtree(Path(own) / ".unhang_cache", ignore_errors=True)
                for name, command in rows:
                    one = measured(command, own)
                    best[name] = min(best.get(name, one), one, key=lambda m: m[1])
            for name, (wall, cpu, peak) in best.items():
                print(f"  {name:34} {wall:7.2f} s wall {cpu:7.2f} s CPU {lines / wall:12,.0f} lines/s  {peak:6.0f} MiB")
        figures["folders"][folder.name] = {"lines": lines} | {
            name: {"wall_s": round(w, 2), "cpu_s": round(c, 2), "lines_per_s": round(lines / w), "peak_mib": round(m)}
            for name, (w, c, m) in best.items()
        }
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
