"""What `unhang diagnose` costs on the largest jobs, with the dumps cold (read from the disk) and warm (in the page cache).

Cold: each file is dropped from the page cache with POSIX_FADV_DONTNEED, so its contents come from the disk while folders
and inodes stay known to the kernel; with --drop-caches (root only) everything is dropped. Every look is a first one: the
cache beside the dumps is neither used nor left.

With --plan the job is only simulated: the dumps of its first 1,024 ranks are made and read as one shard, copies of that shard under other ranks
are merged, and what the whole job would take is extrapolated from both.

Usage: python benchmarks/scale.py [--jobs 16384x2000,100000x50] [--dir DIR] [--runs 1] [--drop-caches] [--save]
       python benchmarks/scale.py --plan 100000x2000 [--processes 2] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dumps_on_disk import HERE, compile_unhang, drop_from_page_cache, made, named_by_unhang, tell, total_bytes
from process_cost import measure

UNHANG = Path(sys.executable).parent / "unhang"
READ = "import os, sys\nfor e in os.scandir(sys.argv[1]):\n with open(e.path, 'rb', 0) as f:\n  while f.read(1 << 20): pass"
TIMINGS = "timings"
SHARD_RANKS, COPIES = 1024, (2, 4, 8, 16)


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
    command: list[str | Path] = [UNHANG, "diagnose", folder, "--format", "json", "--no-cache"]
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


def one_shard(folder: Path) -> dict[str, Any]:
    """What reading all dumps of a folder costs one process, and what merging copies of the result does."""
    from unhang.read.dumps import merge
    from unhang.read.dumps.decode import decode_shard
    from unhang.read.dumps.locate import locate
    from unhang.read.dumps.reader import TAIL, TAILS_AT_ONCE

    files = locate([folder]).files
    read_s = []
    for _ in range(3):
        began = time.monotonic()
        shards = [files[i : i + TAILS_AT_ONCE] for i in range(0, len(files), TAILS_AT_ONCE)]
        parts = [decode_shard(shard, last=TAIL, frames=False) for shard in shards]
        read_s.append(time.monotonic() - began)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shard = merge(parts)
    merges = []
    for copies in COPIES:
        shards = [moved(shard, k * SHARD_RANKS) for k in range(copies)]
        began = time.monotonic()
        whole = merge(shards)
        merges.append({"shards": copies, "seconds": time.monotonic() - began, "rows": len(whole.table)})
    sent_mb = len(pickle.dumps(shard, protocol=5)) / 1e6
    return {"ranks": len(files), "read_s": read_s, "peak_mb": peak_mb, "shard_mb": sent_mb, "merges": merges}


def moved(shard: Any, by: int) -> Any:
    """The same shard as that of later ranks of a larger job."""
    table = shard.table
    columns = {**table.columns, "rank": table["rank"] + by}
    columns["peer"] = columns["peer"] + by * (columns["peer"] >= 0)
    groups = tuple(replace(g, name=f"{g.name}+{by}", ranks=tuple(r + by for r in g.ranks)) for g in table.groups)
    progress = {**table.progress, "rank": table.progress["rank"] + by}
    moved_ranks = {name: frozenset(r + by for r in getattr(table, name)) for name in ("wrapped_ranks", "active_ranks")}
    table = replace(table, columns=columns, groups=groups, progress=progress, **moved_ranks)
    return replace(shard, table=table, dumps={r + by: d for r, d in shard.dumps.items()})


def planned(parent: Path, job: str, given: argparse.Namespace) -> dict[str, Any]:
    """The measured parts of a job that is too large to be made, and the extrapolation."""
    ranks, entries = map(int, job.split("x"))
    folder = parent / f"shard-of-{job}"
    size_of = ["--ranks", str(ranks), "--entries", str(entries), "--last-rank", str(SHARD_RANKS - 1)]
    command = [sys.executable, HERE / "make_dumps.py", folder, *size_of, "--fault", given.fault, "--no-world-ranks"]
    if not folder.exists():
        subprocess.run([*command, *given.make.split()], check=True, stdout=sys.stderr)
    size = total_bytes(folder)
    cost = measure([sys.executable, __file__, "--shard", folder], given.limit)
    if cost is None or not cost.out:
        raise SystemExit(f"one shard was not done: {cost.err[-500:] if cost else given.limit}")
    part = json.loads(cost.out)
    shards = -(-ranks // SHARD_RANKS)
    most = part["merges"][-1]
    read_s = sorted(part["read_s"])[len(part["read_s"]) // 2]
    whole = {
        "shards": shards,
        "gigabytes": size * ranks / SHARD_RANKS / 1e9,
        "processes": given.processes,
        "read_s": shards * read_s / given.processes,
        "merge_s": shards * most["seconds"] / most["shards"],
        "merged_mb": shards * part["shard_mb"],
    }
    return {"job": job, "shard": {**part, "bytes": size}, "whole": whole}


def shown_plan(plan: dict[str, Any]) -> str:
    """The plan in words."""
    part, whole = plan["shard"], plan["whole"]
    merges = ", ".join(f"{m['shards']} shards {m['seconds']:.2f} s" for m in part["merges"])
    reads = "/".join(f"{s:.2f}" for s in part["read_s"])
    return "\n".join(
        [
            f"plan for {plan['job']}: {whole['shards']} shards of {SHARD_RANKS} ranks, {whole['gigabytes']:.0f} GB of dumps",
            f"  measured, one shard: {part['bytes'] / 1e6:.0f} MB read in {reads} s by one process of {part['peak_mb']:.0f} MB; {part['shard_mb']:.1f} MB of it are kept",
            f"  measured, merge: {merges}",
            f"  extrapolated, {whole['processes']} processes: {whole['read_s']:.0f} s to read and {whole['merge_s']:.1f} s to merge, {whole['merged_mb']:.0f} MB merged;",
            "  judging depends on the calls that are kept: see a job of as many ranks with 50 entries each",
        ]
    )


def saved(more: dict[str, Any], text: str, given: argparse.Namespace) -> None:
    """Prints, and with --save adds to benchmarks/results/scale.json and .txt."""
    print(text)
    if not given.save:
        return
    target = HERE / "results" / "scale.json"
    known = json.loads(target.read_text()) if target.exists() else {}
    target.write_text(json.dumps({**known, **more}, indent=1) + "\n")
    told = target.with_suffix(".txt")
    mine = "plan for" if "plan" in more else "cold:"
    kept = [p for p in (told.read_text().split("\n\n") if told.exists() else []) if not p.startswith(mine)]
    told.write_text("\n\n".join([*(p.strip("\n") for p in kept), text]) + "\n")


def main() -> None:
    """Prints the figures, and writes them with --save to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--plan", metavar="RANKSxENTRIES", help="measure one shard of this job, and extrapolate")
    options.add_argument("--processes", type=int, default=os.cpu_count(), help="of the plan")
    options.add_argument("--shard", type=Path, help=argparse.SUPPRESS)
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
    if given.shard is not None:
        print(json.dumps(one_shard(given.shard)))
        return
    compile_unhang()
    with tempfile.TemporaryDirectory() as name:
        parent = given.dir or Path(name)
        parent.mkdir(parents=True, exist_ok=True)
        if given.plan:
            plan = planned(parent, given.plan, given)
            saved({"plan": plan}, shown_plan(plan), given)
            return
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
    saved({"cold": cold, "jobs": results}, text, given)


if __name__ == "__main__":
    main()
