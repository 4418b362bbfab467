"""Ranks that the others wait for and that have not announced themselves: which of the job's processes they must be."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unhang.watch.evidence import CONFIRM_S
from unhang.watch.options import BOOTSTRAP
from unhang.watch.process import are_at_work, take_stacks
from unhang.watch.process_tree import descendants_of
from unhang.watch.ranks import write_whole

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TOGETHER_S = 5.0
_DIGITS = re.compile(rb"\d+")


@dataclass(frozen=True)
class _Found:
    """What /proc tells of a process. `command`: its arguments without numbers, which differ between ranks."""

    pid: int
    parent: int
    start_s: float
    command: bytes
    rank: int | None
    is_launched: bool = False
    is_led: bool = False  # to the recorder, by its PYTHONPATH


def unregistered(missing: Collection[int], registered: Iterable[int], members: Iterable[int]) -> dict[int, int]:
    """The pids of missing ranks, where the processes leave no choice.

    Args:
        missing: the ranks that are waited for.
        registered: pids of the ranks that are known.
        members: pids of all processes of the job.

    Returns:
        rank -> pid: the process that its launcher gave the rank's number; or, of one rank alone, the one process that the
        same parent started together with the known ranks and with the same command.
    """
    known = {pid: found for pid in registered if (found := _read(pid)) is not None}
    others = {pid: found for pid in members if pid not in known and (found := _read(pid)) is not None}
    numbered = _by_number(missing, others)
    if numbered or len(missing) != 1:
        return numbered
    alike = [o for o in others.values() if o.rank is None and any(_are_siblings(o, k) for k in known.values())]
    return dict.fromkeys(missing, alike[0].pid) if len(alike) == 1 else {}


def _by_number(missing: Collection[int], others: Mapping[int, _Found]) -> dict[int, int]:
    """By RANK in the environment that they were started with; helpers inherit it from the rank itself."""
    found: dict[int, list[int]] = {}
    for other in others.values():
        above = others.get(other.parent)
        if other.rank in missing and other.rank is not None and (above is None or above.rank != other.rank):
            found.setdefault(other.rank, []).append(other.pid)
    return {rank: pids[0] for rank, pids in found.items() if len(pids) == 1}


def _are_siblings(one: _Found, other: _Found) -> bool:
    is_alike = (one.parent, one.command) == (other.parent, other.command)
    return is_alike and abs(one.start_s - other.start_s) <= _TOGETHER_S


def _read(pid: int) -> _Found | None:
    with suppress(OSError, ValueError, IndexError):
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        command = _DIGITS.sub(b"#", (folder / "cmdline").read_bytes())
        if fields[0] in "ZX" or "python" not in os.path.basename(os.readlink(folder / "exe")):
            return None
        given = dict(x.split(b"=", 1) for x in (folder / "environ").read_bytes().split(b"\0") if b"=" in x)
        rank = given.get(b"RANK", b"")
        start_s, number = int(fields[19]) / _TICKS_PER_S, int(rank) if rank.isdigit() else None
        is_led = os.fsencode(BOOTSTRAP) in given.get(b"PYTHONPATH", b"").split(b":")
        return _Found(pid, int(fields[1]), start_s, command, number, b"LOCAL_RANK" in given, is_led)
    return None


def adopt(run_dir: Path, found: Mapping[int, int]) -> None:
    """Makes folders for processes that have none, so that their stacks are taken like those of the others."""
    for rank, pid in found.items():
        folder = run_dir / "ranks" / f"r{rank}-{pid}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "identity.json", json.dumps({"rank": rank, "pid": pid, "is_adopted": True}).encode())


def mark_adopted(folder: Path) -> None:
    """Says of a rank's folder that it is our making, where it was made from looks."""
    with suppress(OSError, ValueError):
        identity = json.loads((folder / "identity.json").read_bytes())
        write_whole(folder / "identity.json", json.dumps({**identity, "is_adopted": True}).encode())


def adopt_missing(run_dir: Path, root_pid: int, missing: Collection[int], registered: Iterable[int]) -> bool:
    """Whether processes below `root_pid` were found that must be these ranks; they have folders then."""
    found = unregistered(missing, registered, [p.pid for p in descendants_of(root_pid)] if missing else [])
    adopt(run_dir, found)
    return bool(found)


def may_still_come(root_pid: int, known: Mapping[int, int], missing: Collection[int], in_init: Collection[int]) -> bool:
    """Whether ranks that the others wait for in the rendezvous, or processes that are no rank yet, still work: they import.

    Where all have come to it (`in_init`), whether they work there. `known`: pids by rank. Blocks: up to CONFIRM_S.
    """
    pids = [known[r] for r in missing or in_init if r in known]
    if not set(missing) <= known.keys():
        pids += [p.pid for p in descendants_of(root_pid) if p.pid not in known.values()]
    return are_at_work(pids, CONFIRM_S)


def rendezvous_stacks(pids: Sequence[int]) -> list[Any]:
    """The threads of launchers that wait in their rendezvous; none where none does. Blocks: up to 3 s."""
    threads = [t for found in take_stacks(pids[:8]).values() for t in found]
    main = [
        t for t in threads if t.get("thread_name") in (None, "", "MainThread")
    ]  # others keep the rendezvous alive while ranks run
    waits = any("rendezvous" in str(f.get("filename")) for t in main for f in t.get("frames", ()))
    return threads if waits else []


def unrecorded(root_pid: int, only_launched: bool = False, only_misled: bool = False) -> list[int]:
    """The ranks below a process to which their launcher gave a number; helpers inherit it.

    `only_launched`: those that have a number on their machine too, which a launcher that is still at work has not. `only_misled`:
    those whose PYTHONPATH does not lead to the recorder; the others may still import what they need before it announces them.
    """
    seen = [found for p in descendants_of(root_pid) if (found := _read(p.pid)) is not None]
    seen = [x for x in seen if (x.is_launched or not only_launched) and not (x.is_led and only_misled)]
    return sorted({x.rank for x in seen if x.rank is not None})


def is_adopted(folder: Path) -> bool:
    """Whether a folder is our making, and the process has not announced itself since."""
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / "identity.json").read_bytes()).get("is_adopted"))
    return False


def disown(folder: Path) -> None:
    """The job went on: the process will register itself."""
    if is_adopted(folder):
        shutil.rmtree(folder, ignore_errors=True)
