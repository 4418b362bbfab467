"""What `unhang diagnose` costs on the largest jobs, with the dumps cold (read from the disk) and warm (in the page cache).

Cold: each file is dropped from the page cache with POSIX_FADV_DONTNEED, so its contents come from the disk while folders
and inodes stay known to the kernel; with --drop-caches (root only) everything is dropped. Every look is a first one: the
cache beside the dumps is neither used nor left.

Usage: python benchmarks/scale.py [--jobs 16384x2000,100000x50] [--dir DIR] [--runs 1] [--drop-caches] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from dumps_on_disk import HERE, drop_from_page_cache, made, named_by_unhang, tell, total_bytes
from process_cost import measure

UNHANG = Path(sys.executable).parent / "unhang"
READ = "import os, sys\nfor e in os.scandir(sys.argv[1]):\n with open(e.path, 'rb', 0) as f:\n  while f.read(1 << 20): pass"
TIMINGS = "timings"


def stages(err: str) -> dict[str, Any]:
    """The timings of the stages, which `unhang diagnose` prints as one line of JSON when asked for."""
    found: dict[str, Any] = {}
    for line in err.splitlines():
        if line.startswith("{") and TIMINGS in line:
            found |= json.loads(line)
    return found


def drop(folder: Path, everything: bool) -> None:
    """Makes the next look a cold one."""
    drop_from_page_cache(folder)
    if everything:
        Path("/proc/sys/vm/drop_caches").write_text("3")


def look(folder: Path, truth: set[int], state: str, limit_s: float) -> dict[str, Any]:
    """One diagnosis of one job."""
    command: list[str | Path] = [UNHANG, "diagnose", folder, "--output-format", "json", "--no-cache"]
    cost = measure(command, limit_s, {"UNHANG_TIMINGS": "1"})
    if cost is None:
        tell(f"  {state}: not done within {limit_s:.0f} s")
        return {"state": state, "limit_s": limit_s}
    named = named_by_unhang(cost.out)
    found = {
        "state": state,
        "wall_s": cost.wall_s,
        "cpu_s": cost.cpu_s,
        "peak_mb": cost.peak_bytes / 1e6,
        "exit_code": cost.exit_code,
        "right": named == truth,
        "named": sorted(named)[:16],
        "left_behind": cost.left_behind,
        "stages": stages(cost.err),
    }
    tell(f"  {state}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU-s, {cost.peak_bytes / 1e6:.0f} MB")
    if not cost.out:
        tell(cost.err[-500:])
    return found


def measured(parent: Path, job: str, given: argparse.Namespace) -> dict[str, Any]:
    """All looks at one job, cold and warm in turns."""
    ranks, entries = map(int, job.split("x"))
    folder, truth = made(parent, ranks, entries, given.fault, given.make)
    size = total_bytes(folder)
    tell(f"{job}: {size / 1e9:.2f} GB, at fault: {sorted(truth)}")
    floor = []
    looks = []
    for _ in range(given.runs):
        for state in ("cold", "warm"):
            if state == "cold":
                drop(folder, given.drop_caches)
            if (read := measure([sys.executable, "-c", READ, folder], given.limit)) is not None:
                floor.append({"state": state, "wall_s": read.wall_s, "cpu_s": read.cpu_s})
            if state == "cold":
                drop(folder, given.drop_caches)
            looks.append(look(folder, truth, state, given.limit))
    return {"job": job, "bytes": size, "culprits": sorted(truth), "looks": looks, "reading_all_bytes": floor}


def shown(result: dict[str, Any]) -> str:
    """The looks at one job as lines of a table."""
    lines = []
    for one in result["looks"]:
        floor = [f"{f['wall_s']:.1f}" for f in result["reading_all_bytes"] if f["state"] == one["state"]]
        head = f"{result['job']:>12} {result['bytes'] / 1e9:7.2f} {one['state']:>5} {'/'.join(floor):>12}"
        if "wall_s" not in one:
            lines.append(f"{head}  not done within {one['limit_s']:.0f} s")
            continue
        verdict = "right" if one["right"] else f"wrong {one['named']}"
        lines.append(f"{head} {one['wall_s']:8.1f} {one['cpu_s']:8.1f} {one['peak_mb']:8.0f} {verdict:>8}")
        lines += [f"{'':>12} {name}: {json.dumps(value)}" for name, value in one["stages"].items()]
    return "\n".join(lines)


def main() -> None:
    """Prints the figures, and writes them with --save to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", default="16384x2000,100000x50", help="RANKSxENTRIES, separated by commas")
    options.add_argument("--fault", default="missing", help="see make_dumps.py --list")
    options.add_argument("--make", default="", help="further options for make_dumps.py, such as '--make=--pp 1'")
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--limit", type=float, default=1200, help="seconds per look")
    options.add_argument("--dir", type=Path, help="where the dumps are made, or lie from an earlier run")
    options.add_argument("--drop-caches", action="store_true", help="cold: drop all of the kernel's caches (root)")
    options.add_argument("--save", action="store_true", help="write benchmarks/results/scale.json and .txt")
    given = options.parse_args()
    if given.drop_caches and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        options.error("--drop-caches needs root")
    with tempfile.TemporaryDirectory() as name:
        parent = given.dir or Path(name)
        parent.mkdir(parents=True, exist_ok=True)
        results = [measured(parent, job, given) for job in given.jobs.split(",")]
    cold = "all caches dropped" if given.drop_caches else "contents dropped file by file (POSIX_FADV_DONTNEED)"
    head = (
        f"{'job':>12} {'GB':>7} {'state':>5} {'read, wall s':>12} {'wall s':>8} {'CPU s':>8} {'MB':>8} {'verdict':>8}"
    )
    text = "\n".join(
        [
            f"cold: {cold}; {os.cpu_count()} cores; fault: {' '.join([given.fault, given.make]).strip()}",
            head,
            *map(shown, results),
        ]
    )
    print(text)
    if given.save:
        target = HERE / "results" / "scale"
        target.with_suffix(".json").write_text(json.dumps({"cold": cold, "jobs": results}, indent=1) + "\n")
        target.with_suffix(".txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
