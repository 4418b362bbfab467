"""What a verdict costs, and whether it is right: `torchfrtrace` and `unhang diagnose` on the same dumps, taking turns.

Every run is a fresh process. Beside them the floor: the time to read all bytes, and to decode every entry once with
`pickle.loads`. The dumps lie in the page cache for all of them. `unhang` is measured at its first look (its cache beside
the dumps is removed before) and at its second; with --against, it compares the job with one of the same size in which
nothing goes wrong.

Usage: python benchmarks/versus_torchfrtrace.py [--ranks 64,256,1024] [--entries 2000] [--fault missing] [--runs 3] [--save]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from dumps_on_disk import (
    HERE,
    compile_unhang,
    forget_verdicts,
    made,
    named_by_torchfrtrace,
    named_by_unhang,
    tell,
    total_bytes,
)
from process_cost import Cost, measure

SCRIPTS = Path(sys.executable).parent
_FILES = "for path in pathlib.Path(sys.argv[1]).glob('nccl_trace_rank_*'): "
READ = f"import pathlib, sys\n{_FILES}path.read_bytes()"
DECODE = f"import gc, pathlib, pickle, sys\ngc.disable()\n{_FILES}pickle.loads(path.read_bytes())"
TRACE_GOAL = AGAINST_GOAL = 5.0
FLOOR, OURS = ("read", "decode"), ("unhang", "unhang again", "unhang --trace", "unhang --against")
ORDERS = ((*FLOOR, "torchfrtrace", *OURS), (*OURS, "torchfrtrace", *FLOOR))


@dataclass(frozen=True)
class Figures:
    """Medians over the runs of one command; None stands for a command that failed or did not end within the limit.

    `right` counts the runs in which the culprits of the truth, and no others, were named.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    runs: int
    right: int
    named: int
    left_behind: int

    @classmethod
    def of(cls, costs: list[Cost | None], named: list[set[int]], truth: set[int]) -> Figures | None:
        """The figures of some runs and of what each of them said."""
        ended = [c for c in costs if c is not None]
        if not ended or len(ended) < len(costs):
            return None
        return cls(
            wall_s=statistics.median(c.wall_s for c in ended),
            cpu_s=statistics.median(c.cpu_s for c in ended),
            peak_mb=statistics.median(c.peak_bytes for c in ended) / 1e6,
            runs=len(ended),
            right=sum(ranks == truth for ranks in named),
            named=max(map(len, named), default=0),
            left_behind=sum(c.left_behind for c in ended),
        )


def commands(folder: Path, other: Path, trace: Path) -> dict[str, list[str | Path]]:
    """Every command that is measured."""
    verdict: list[str | Path] = [SCRIPTS / "unhang", "diagnose", folder, "--format", "json"]
    return {
        "read": [sys.executable, "-c", READ, folder],
        "decode": [sys.executable, "-c", DECODE, folder],
        "torchfrtrace": [SCRIPTS / "torchfrtrace", folder],
        "unhang": verdict,
        "unhang again": verdict,
        "unhang --trace": [*verdict, "--no-cache", "--trace", trace],
        "unhang --against": [*verdict, "--no-cache", "--against", other],
    }


def outcome_of(what: str, cost: Cost | None, trace: Path) -> str:
    """Why a run of a command does not count, "" if it does."""
    if cost is None:
        return "not done within the limit"
    last_line = cost.err.strip().rpartition("\n")[2]
    if what == "unhang --trace" and not trace.exists():
        return f"no trace: {last_line}"
    return last_line if what in OURS and not cost.out else ""


def compared(folder: Path, other: Path, truth: set[int], runs: int, limit_s: float) -> dict[str, Figures | None]:
    """The figures of all commands on one job and another one. A command that fails or takes too long is not tried again."""
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.json.gz"
        every = commands(folder, other, trace)
        costs: dict[str, list[Cost | None]] = {what: [] for what in every}
        named: dict[str, list[set[int]]] = {what: [] for what in every}
        for turn in range(runs):
            for what in ORDERS[turn % 2]:
                if None in costs[what]:
                    continue
                if what == "unhang":
                    forget_verdicts(folder)
                cost = measure(every[what], limit_s)
                failure = outcome_of(what, cost, trace)
                if cost is None or failure:
                    costs[what].append(None)
                    tell(f"  {what}: {failure}")
                    continue
                costs[what].append(cost)
                tell(f"  {what}: {cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s, {cost.peak_bytes / 1e6:.0f} MB")
                if what == "torchfrtrace":
                    named[what].append(named_by_torchfrtrace(cost.out + cost.err))
                elif what in OURS and what != "unhang --against":
                    named[what].append(named_by_unhang(cost.out))
        forget_verdicts(folder)
    return {what: Figures.of(costs[what], named[what], truth) for what in every}


def shown(figures: Figures | None) -> str:
    """CPU seconds, megabytes, wall seconds and the verdict in one cell."""
    if figures is None:
        return f"{'-':>8} {'-':>8} {'-':>7} {'none':>12}"
    verdict = f"{figures.right}/{figures.runs} ({figures.named})"
    return f"{figures.cpu_s:8.2f} {figures.peak_mb:8.0f} {figures.wall_s:7.2f} {verdict:>12}"


def number(value: float | None) -> str:
    """A number of a cell, where it is known."""
    return "-" if value is None else f"{value:.2f}"


def ratio(of: float | None, to: float | None) -> str:
    """`of` divided by `to`, where both are known."""
    return f"{of / to:.1f}x" if of is not None and to else "-"


def table(results: dict[int, dict[str, Figures | None]], sizes: dict[int, int]) -> str:
    """The comparison as text."""
    columns = f"{'CPU s':>8} {'MB':>8} {'wall s':>7} {'right':>12}"
    lines = [
        f"{'':>6} {'':>6} | {'torchfrtrace':^38} | {'unhang diagnose':^38} | {'ratio':^15} | {'floor, CPU s':^14} | {'again':>6} | {'trace':^18} | against",
        f"{'ranks':>6} {'GB':>6} | {columns} | {columns} | {'CPU':>7} {'memory':>7} | {'read':>6} {'decode':>7} | {'wall s':>6} | {'/ verdict':^18} | / verdict",
    ]
    for ranks, figures in results.items():
        cpu = {what: None if f is None else f.cpu_s for what, f in figures.items()}
        memory = {what: None if f is None else f.peak_mb for what, f in figures.items()}
        again = figures["unhang again"]
        lines.append(
            f"{ranks:6} {sizes[ranks] / 1e9:6.2f} | {shown(figures['torchfrtrace'])} | {shown(figures['unhang'])} | "
            f"{ratio(cpu['torchfrtrace'], cpu['unhang']):>7} {ratio(memory['torchfrtrace'], memory['unhang']):>7} | "
            f"{number(cpu['read']):>6} {number(cpu['decode']):>7} | {number(None if again is None else again.wall_s):>6} | "
            f"{ratio(cpu['unhang --trace'], cpu['unhang']):>5} (goal <= {TRACE_GOAL:.0f}x) | "
            f"{ratio(cpu['unhang --against'], cpu['unhang'])} (goal <= {AGAINST_GOAL:.0f}x)"
        )
    lines.append("right: runs in which exactly the culprits were named / runs (ranks named at most)")
    lines.append(
        "MB: largest sum of the PSS of all processes of a command, no less than the largest RSS of one of them"
    )
    return "\n".join(lines)


def main() -> None:
    """Prints the table, and writes it with --save to benchmarks/results."""
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", default="64,256,1024")
    options.add_argument("--entries", type=int, default=2000)
    options.add_argument("--fault", default="missing", help="see make_dumps.py --list")
    options.add_argument("--make", default="", help="further options for make_dumps.py, such as '--make=--pp 1'")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--limit", type=float, default=600, help="seconds per run")
    options.add_argument("--dir", type=Path, help="where the dumps are made, or lie from an earlier run")
    options.add_argument(
        "--save", action="store_true", help="write benchmarks/results/versus_torchfrtrace.json and .txt"
    )
    given = options.parse_args()
    compile_unhang()
    results, sizes = {}, {}
    with tempfile.TemporaryDirectory() as name:
        parent = given.dir or Path(name)
        parent.mkdir(parents=True, exist_ok=True)
        for ranks in map(int, given.ranks.split(",")):
            folder, truth = made(parent, ranks, given.entries, given.fault, given.make)
            tell(f"{ranks} ranks x {given.entries} entries, at fault: {sorted(truth)}")
            sizes[ranks] = total_bytes(folder)
            other, _ = made(parent, ranks, given.entries, "healthy", given.make)
            results[ranks] = compared(folder, other, truth, given.runs, given.limit)
    text = f"fault: {' '.join([given.fault, given.make]).strip()}, {given.entries} entries per rank\n{table(results, sizes)}"
    print(text)
    if given.save:
        saved = {
            ranks: {"bytes": sizes[ranks], **{what: f and asdict(f) for what, f in figures.items()}}
            for ranks, figures in results.items()
        }
        target = HERE / "results" / "versus_torchfrtrace"
        target.with_suffix(".json").write_text(json.dumps(saved, indent=1) + "\n")
        target.with_suffix(".txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
