"""The hang benchmark: five real trainings x their own and injected faults, and healthy runs; strict scoring.

Runs each job under `unhang run`, one after the other, and compares the verdict with the truth in `table.toml`. With --peers a
sample of the same runs goes without unhang: what torch's text, torchfrtrace and the DETAIL mode say. With --reproduce the
reports of all hangs become programs.

Usage: python benchmarks/hangbench/run.py [--resume] [--only GLOB] [--quick] [--peers] [--reproduce] [--write-docs]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.hangbench import peers, reproduced
from benchmarks.hangbench.cases import SEED, Run, all_runs
from benchmarks.hangbench.jobs import run_once
from benchmarks.hangbench.page import write_docs
from benchmarks.hangbench.score import HIT
from benchmarks.hangbench.summary import told

RESULTS = Path(__file__).parents[1] / "results" / "hangbench.jsonl"
QUICK = (
    "masked_lm/sigstop-1", "reid/sigkill-1", "async_rl/subgroup_not_created_by_all-1",
    "async_rl/rank_raises-1", "reid/own-nan_loss", "nanochat/stuck_checkpoint-1", "nanochat/wrong_shape-1",
    "async_rl/healthy-1", "reid/healthy-1",
)  # fmt: skip
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file; a line cut short by a stop is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def selected(runs: Sequence[Run], only: str, is_quick: bool) -> list[Run]:
    """The runs that are asked for, in an order in which every part of the table is a sample of the whole."""
    chosen = [r for r in runs if fnmatch.fnmatch(r.name, only) and (not is_quick or r.name in QUICK)]
    random.Random(SEED).shuffle(chosen)
    return chosen


def work_through(
    todo: Mapping[str, Callable[[], list[Row]]], path: Path, is_resumed: bool, tell: Callable[[str], None] = print
) -> list[Row]:
    """Does what is missing, by name; rows are written after each. Returns all rows of the file.

    Blocks: as long as what is done.
    """
    rows = [row for row in read_rows(path) if is_resumed or row["name"] not in todo]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = {row["name"] for row in rows}
    left = [name for name in todo if name not in done]
    began_s = time.monotonic()
    for number, name in enumerate(left, start=1):
        made = todo[name]()
        rows += made
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in made)
        left_s = (time.monotonic() - began_s) / number * (len(left) - number)
        tell(f"{number:3}/{len(left)} {'; '.join(map(line_of, made))}   ~{left_s / 60:.0f} min left")
    return rows


def line_of(row: Row) -> str:
    """One row in one line."""
    if "tool" in row:
        return f"{row['name']} {row['tool']}: {row['score']['result']}"
    if "is_right" in row:
        return f"{row['name']} {'reproduced' if row['is_right'] else 'not reproduced'} {row['seconds']} s {row['said'][-90:]}"
    said, result = row["said"], row["score"]["result"]
    answer = "" if result == HIT else f": {said['outcome']}, {said['cause']}, ranks {said['ranks']}, {said['line']}"
    return f"{row['name']:38} {row['seconds']:5.1f} s  {result}{answer}"


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def kept(folder: Path, name: str) -> Path:
    """Where the report of a run is kept."""
    return folder / name.replace("/", "-")


def beside(results: Path, what: str) -> Path:
    """The file for other results of the same runs."""
    return results.with_name(f"{results.stem}-{what}.jsonl")


def parsed() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--resume", action="store_true", help="leave out what the results have")
    options.add_argument("--only", default="*", metavar="GLOB", help="runs of these names")
    options.add_argument("--quick", action="store_true", help="nine runs")
    options.add_argument("--peers", action="store_true", help="run the peers on a sample of the faults instead")
    options.add_argument("--reproduce", action="store_true", help="make programs of the kept reports instead")
    options.add_argument(
        "--write-docs", action="store_true", help="write docs/hangbench.md from the results, run nothing"
    )
    options.add_argument("--seed", type=int, default=SEED, help="draws other ranks, steps and calls")
    options.add_argument("--list", action="store_true", help="list the runs")
    options.add_argument("--output", type=Path, default=RESULTS, help="the results, JSON lines")
    options.add_argument("--reports", type=Path, default=Path(tempfile.gettempdir()) / "hangbench", help="kept reports")
    return options.parse_args()


def main() -> None:
    """Runs what is asked for and prints the table."""
    given = parsed()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that the present job ends too
    runs = selected(all_runs(given.seed), given.only, given.quick)
    if not runs:
        sys.exit(f"no run is called {given.only!r}; --list shows them")
    if given.list:
        runs.sort(key=lambda run: run.name)
        say("\n".join(f"{run.name:40} {run.fault or ' '.join(run.args)}" for run in runs))
    elif given.write_docs:
        theirs, programs = (read_rows(beside(given.output, what)) for what in ("peers", "reproduce"))
        say(f"wrote {write_docs(read_rows(given.output), theirs, programs)}")
    elif given.peers:
        todo = {run.name: lambda run=run: peers.run_peers(run) for run in peers.chosen(runs)}
        work_through(todo, beside(given.output, "peers"), given.resume, say)
    elif given.reproduce:
        names = {run.name for run in runs}
        rows = [row for row in read_rows(given.output) if row["name"] in names and reproduced.is_candidate(row)]
        made = {
            row["name"]: lambda row=row: [reproduced.reproduce(row, kept(given.reports, row["name"]))] for row in rows
        }
        work_through(made, beside(given.output, "reproduce"), given.resume, say)
    else:
        jobs = {run.name: lambda run=run: [run_once(run, kept(given.reports, run.name))] for run in runs}
        say(told(work_through(jobs, given.output, given.resume, say)))


if __name__ == "__main__":
    main()
