"""How fast a huge log is searched for the lines that matter: with hyperscan, with numpy alone, and beside ripgrep or grep.

Each figure is the median of three runs, each in a process of its own, on a file that the machine has in memory. Bytes are
divided by CPU time (one core) and by wall-clock time; the second suffers from whatever else runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.logs import all_patterns
from unhang.read.logs.scan import anchors, blocks, scan
from unhang.read.logs.scan_engines import GramEngine, HyperscanEngine, has_hyperscan
from unhang.read.logs.source import read_output, read_outputs

RUNS = 3
BASE_BYTES = 64 << 20
FAILURES_PER_BASE = 120
CORPUS = Path(__file__).parents[1] / "tests" / "logs" / "lines"
RESULTS = Path(__file__).parent / "results" / "log_speed.json"
MODULES = [
    "attention",
    "decoder",
    "encoder",
    "loader",
    "optimizer",
    "embedding",
    "router",
    "sampler",
    "checkpoint",
    "tokenizer",
]


def ordinary_lines(draw: random.Random) -> Iterator[str]:
    """Progress bars, lines of a logger, and NCCL's own, as a healthy job prints them."""
    step = 0
    while True:
        step += 1
        kind, rank = draw.random(), draw.randrange(64)
        if kind < 0.45:
            bar = "#" * (step % 30)
            yield f"\rEpoch 3: {step % 100:3d}%|{bar:30s}| {step}/120000 [{step % 60:02d}:12<01:22, {draw.random() * 9:.2f}it/s]"
        elif kind < 0.75:
            where = f"{draw.choice(MODULES)}.py:{draw.randrange(999)}"
            yield (
                f"2026-03-01 10:{step % 60:02d}:{rank:02d},{draw.randrange(999):03d} - INFO - {where} - rank {rank} step {step} "
                f"loss: {draw.random() * 5:.5f} lr: {draw.random():.3e} tokens/s {draw.randrange(10**5)}"
            )
        elif kind < 0.95:
            yield (
                f"node-{rank // 8}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO Channel {step % 32:02d}/32 : {rank}[{rank % 8}]"
                f" -> {(rank + 1) % 64}[{(rank + 1) % 8}] [send] via NET/IB/{rank % 8}/GDRDMA"
            )
        else:
            yield f"[rank{rank}]: {draw.choice(MODULES)} batch {step} of {draw.choice(MODULES)} took {draw.random() * 9:.3f} s"


def write_log(path: Path, size: int, seed: int) -> None:
    """A log of this size: distinct text of 64 MiB at most, over and over, with lines of failures at other places each time."""
    draw = random.Random(seed)
    parts, length = [], 0
    for line in ordinary_lines(draw):
        parts.append(line)
        length += len(line) + 1
        if length >= min(BASE_BYTES, size):
            break
    proving = {pattern.kind for pattern in all_patterns() if pattern.says}
    corpus = [line.split(" :: ", 1) for path in sorted(CORPUS.glob("*.log")) for line in path.read_text().splitlines()]
    examples = [line for kind, line in corpus if kind.strip() in proving]
    with path.open("w", newline="") as f:
        left = size
        while left > 0:
            lines = parts.copy()
            for _ in range(FAILURES_PER_BASE * min(BASE_BYTES, size) // BASE_BYTES):
                lines.insert(draw.randrange(len(lines)), draw.choice(examples))
            text = "\n".join(lines)[:left] + "\n"
            left -= len(text)
            f.write(text)


def child(what: str, path: Path) -> None:
    """One run: prints its figures as JSON."""
    before_kib = peak_kib()
    began, cpu = time.perf_counter(), time.process_time()
    kept = flooded = 0
    with path.open("rb", buffering=0) as f:
        if what == "read":
            lines = sum(1 for _ in blocks(f.read))
        elif what == "read_output":
            log = read_output(path)
            kept, lines = len(log.lines), len(log.lines) + log.omitted_lines
        else:
            found = scan(f.read, HyperscanEngine if what == "hyperscan" else GramEngine)
            kept, lines, flooded = len(found.lines), found.total_lines, len(found.flooded)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - began
    after_kib = peak_kib()
    figures = {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "peak_mib": after_kib / 1024,
        "grew_mib": (after_kib - before_kib) / 1024,
    }
    print(json.dumps({**figures, "lines": lines, "kept": kept, "flooded": flooded}))


def peak_kib() -> int:
    """The most memory that this process has held; the parent's does not count, as it would in `getrusage`."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def measured(what: str, path: Path) -> dict[str, float]:
    """The median of the runs."""
    runs = []
    for _ in range(RUNS):
        command = [sys.executable, __file__, "--child", what, str(path)]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return in_short(runs, path.stat().st_size)


def in_short(runs: Sequence[dict[str, float]], size: int) -> dict[str, float]:
    """Medians, and the speed that they are."""
    found = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
    found["gb_per_cpu_s"] = round(size / found["cpu_s"] / 1e9, 3)
    found["gb_per_wall_s"] = round(size / found["wall_s"] / 1e9, 3)
    return found


def searched(program: Sequence[str], words: Path, path: Path) -> dict[str, float]:
    """The same texts with another program, which counts the lines that hold one."""
    runs = []
    for _ in range(RUNS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [*program, "-c", "-F", "-f", str(words), str(path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs.append({"cpu_s": cpu_s, "wall_s": wall_s, "lines_found": float(done.stdout.strip() or -1)})
    return in_short(runs, path.stat().st_size)


def one_file(folder: Path, mib: int) -> dict[str, object]:
    """All ways to search one file."""
    path, words = folder / "job.log", folder / "words"
    write_log(path, mib << 20, seed=1)
    words.write_bytes(b"\n".join(anchor.word for anchor in anchors()) + b"\n")
    found: dict[str, object] = {
        "bytes": path.stat().st_size,
        "words": len(anchors()),
        "read_only": measured("read", path),
    }
    found["hyperscan"] = measured("hyperscan", path) if has_hyperscan() else "hyperscan is not installed"
    found["numpy"] = measured("numpy", path)
    found["read_output"] = measured("read_output", path)
    has_ripgrep = shutil.which("rg") is not None
    found["ripgrep"] = searched(["rg", "-j1", "--text"], words, path) if has_ripgrep else "ripgrep is not installed"
    found["gnu_grep"] = searched(["grep", "-a"], words, path)
    path.unlink()
    return found


def many_files(folder: Path, count: int, mib: int) -> dict[str, object]:
    """Many logs of ranks: a few distinct files with many names, read whole (lines, prefixes, tracebacks), with progress."""
    distinct = [folder / f"distinct_{i}" for i in range(8)]
    for i, path in enumerate(distinct):
        write_log(path, mib << 20, seed=i)
    files = []
    for rank in range(count):
        name = folder / f"rank_{rank}.log"
        os.link(distinct[rank % len(distinct)], name)
        files.append((name, rank))
    began, cpu, shown = time.perf_counter(), time.process_time(), 0.0

    def tell(done: int, total: int) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown > 0.5 or done == total:
            shown, bar = now, "#" * (40 * done // total)
            print(f"\r[{bar:40s}] {done / 1e9:.2f} of {total / 1e9:.2f} GB", end="", file=sys.stderr)

    kept = 0
    for path, log in read_outputs(files, on_progress=tell):
        if isinstance(log, UnreadableInput):
            raise log
        kept += len(log.lines)
        path.unlink()
    print(file=sys.stderr)
    cpu_s, wall_s, size = time.process_time() - cpu, time.perf_counter() - began, count * (mib << 20)
    return {
        "files": count,
        "distinct_files": len(distinct),
        "bytes": size,
        "kept_lines": kept,
        "engine": "hyperscan" if has_hyperscan() else "numpy",
        "peak_mib": round(peak_kib() / 1024, 1),
        **in_short([{"cpu_s": cpu_s, "wall_s": wall_s}], size),
    }


def main() -> None:
    """Prints the figures and writes them to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the one large file")
    parser.add_argument("--many", type=int, default=0, metavar="FILES", help="read so many files of 10 MiB as well")
    parser.add_argument("--many-mib", type=int, default=10)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]))
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        found["one_file"] = one_file(Path(folder), given.mib)
        print(json.dumps(found["one_file"], indent=1), flush=True)
        if given.many:
            found["many_files"] = many_files(Path(folder), given.many, given.many_mib)
            print(json.dumps(found["many_files"], indent=1))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
