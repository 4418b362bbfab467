"""Dumps for the benchmarks of `unhang diagnose`: made once, reused, with their truth; and what is said of them."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MAKE_LIMIT_S = 3600
_BYTES_PER_ENTRY, _BYTES_PER_RANK = 180, 15_000
_WITHOUT_RANKS = "--no-world-ranks"


def bytes_needed(ranks: int, entries: int, lists_ranks: bool = True) -> int:
    """About how much room the dumps take. `lists_ranks`: each of them lists the ranks of the world."""
    return ranks * (_BYTES_PER_RANK + entries * _BYTES_PER_ENTRY + lists_ranks * ranks * len(f"{ranks - 1}, "))


def made(parent: Path, ranks: int, entries: int, fault: str, more: str = "") -> tuple[Path, set[int]]:
    """The folder of the dumps, and the ranks at fault. `more`: further options of make_dumps.py, such as "--pp 1".

    Where there is no room for the list of all ranks in each dump, which in a job of 100,000 ranks takes nearly all of it, it is left out.

    Raises:
        SystemExit: there is no room for the dumps.
    """
    folder = parent / "-".join([fault, f"{ranks}x{entries}", *more.replace("--", "").split()])
    truth = folder.with_name(f"{folder.name}.truth.json")
    if not truth.exists():
        room = 0.9 * shutil.disk_usage(parent).free
        if _WITHOUT_RANKS not in more and bytes_needed(ranks, entries) > room:
            more = f"{more} {_WITHOUT_RANKS}"
        if (needed := bytes_needed(ranks, entries, _WITHOUT_RANKS not in more)) > room:
            raise SystemExit(f"{folder}: needs about {needed / 1e9:.1f} GB, {room / 1e9:.1f} GB are free (--dir)")
        tell(f"making {folder} (about {needed / 1e9:.1f} GB){' without lists of all ranks' * (_WITHOUT_RANKS in more)}")
        size = ["--ranks", str(ranks), "--entries", str(entries)]
        command = [sys.executable, HERE / "make_dumps.py", folder, *size, "--fault", fault, *more.split()]
        subprocess.run(command, check=True, timeout=MAKE_LIMIT_S, stdout=sys.stderr)
    return folder, set(json.loads(truth.read_text())["culprits"])


def compile_unhang() -> None:
    """Leaves byte code beside the sources, as an installer does: else each run of edited sources compiles them again."""
    spec = importlib.util.find_spec("unhang")
    for folder in (spec and spec.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=1)


def forget_verdicts(folder: Path) -> None:
    """Removes the cache that an earlier diagnosis left beside the dumps."""
    shutil.rmtree(folder / ".unhang-cache", ignore_errors=True)


def drop_from_page_cache(folder: Path) -> None:
    """Lets the kernel forget the files' contents (`POSIX_FADV_DONTNEED`); folders and inodes stay known to it."""
    os.sync()
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def total_bytes(folder: Path) -> int:
    """The size of all dumps."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def named_by_torchfrtrace(output: str) -> set[int]:
    """All ranks that it calls culprits, or missing in a collective."""
    named = {int(rank) for rank in re.findall(r"Culprit rank (\d+)", output)}
    missing = re.findall(r"missing ranks: \{([\d, ]+)\}", output)
    return named | {int(rank) for ranks in missing for rank in ranks.split(",")}


def named_by_unhang(report: str) -> set[int]:
    """All ranks that any finding of a report in JSON names as culprits."""
    try:
        return {rank for finding in json.loads(report)["findings"] for rank in finding["culprit_ranks"]}
    except json.JSONDecodeError:
        return set()


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)
