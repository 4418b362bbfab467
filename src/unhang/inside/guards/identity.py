"""Who this process is, what it runs, and whether all ranks agree on it before the first collective."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards.board import Board, peer_failed
from unhang.inside.guards.words import log, shortened, some_of
from unhang.inside.rank import LOCAL_RANK, number_from

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_SAME = ("world_size", "torch", "code", "config", "backend", "timeout_s")
_MOST_NAMED = 8
_MOST_SETTINGS = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DEFAULT_ENTRIES = 2000
# Source: measured, the record of a call with its frames takes about this much or more.
BYTES_PER_ENTRY = 500
MOST_ENTRIES = 100_000


def plain(value: object) -> object:
    """A configuration as JSON knows it: equal for equal contents in all processes, with no addresses of objects in it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(plain(part)) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
    if type(value).__module__ == "argparse" or type(value).__name__ == "SimpleNamespace":
        return plain(vars(value))
    return _ADDRESS.sub("", str(value))


def digest(value: object) -> str:
    """A short hash of a configuration; equal for equal contents."""
    try:
        text = json.dumps(plain(value))
    except (RecursionError, TypeError, ValueError):
        text = type(value).__name__  # it holds itself, say: then only its type is compared
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def settings_of(config: object) -> dict[str, str]:
    """The first settings of a configuration that has names, each as a short text, so that the one that differs can be named."""
    try:
        named = plain(config)
    except (RecursionError, TypeError, ValueError):
        return {}
    if not isinstance(named, dict):
        return {}
    return {
        name: digest(value) if any(s in name.upper() for s in SECRET) else shortened(json.dumps(value), 60)
        for name, value in list(named.items())[:_MOST_SETTINGS]
    }


def code_hash() -> str:
    """A hash of the program's main file; empty where there is none, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(path or "", "rb") as file:
            return hashlib.sha256(file.read(16 << 20)).hexdigest()[:12]
    except OSError:
        return ""


def describe(rank: int, world_size: int, device: Any, **settings: object) -> dict[str, Any]:
    """What the other ranks must know of this one."""
    torch = sys.modules.get("torch")
    return {
        "rank": rank,
        "world_size": world_size,
        "local_rank": number_from(LOCAL_RANK),
        "host": platform.node(),
        "pid": os.getpid(),
        "device": device_name(device),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "torch": str(getattr(torch, "__version__", "")),
        "code": code_hash(),
        **settings,
    }


def device_name(device: Any) -> str:
    """The device as one that is the same on all ranks of a host only if they share it: its uuid where it has one."""
    if device is None or getattr(device, "type", "cpu") == "cpu":
        return ""
    torch = sys.modules["torch"]
    try:
        return f"{device.type}:{torch.cuda.get_device_properties(device).uuid}"
    except Exception:  # noqa: BLE001 - older torch has no uuid
        return f"{device}/{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"


def faults(all_ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the mapping of the ranks, in words; empty where nothing is."""
    found = _numbering(all_ranks)
    owners: dict[tuple[str, str], list[int]] = {}
    for who in all_ranks:
        if who.get("device"):
            owners.setdefault((str(who.get("host")), who["device"]), []).append(who["rank"])
    found += [
        f"ranks {some_of(ranks, _MOST_NAMED)} on {host} use the same device {device}"
        for (host, device), ranks in owners.items()
        if len(ranks) > 1
    ]
    for name in _SAME:
        differs = _difference(name, all_ranks)
        if differs and name == "config":
            found += _settings_that_differ(all_ranks) or [differs]
        elif differs:
            found.append(differs)
    return found


def _numbering(all_ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Numbers of ranks that are missing, or that two processes have."""
    there = Counter(who["rank"] for who in all_ranks)
    found = [f"rank {rank} is there {times} times" for rank, times in sorted(there.items()) if times > 1]
    gaps = [rank for rank in range(max(there, default=-1) + 1) if rank not in there]
    return [*found, *([f"there is no rank {some_of(gaps, _MOST_NAMED)}"] if gaps else [])]


def _difference(name: str, all_ranks: Sequence[Mapping[str, Any]]) -> str:
    """Who has another value than most; empty where all have the same."""
    values = Counter(str(who.get(name, "")) for who in all_ranks)
    if len(values) < 2:
        return ""
    common, count = values.most_common(1)[0]
    odd = [f"rank {w['rank']} has {w.get(name)!r}" for w in all_ranks if str(w.get(name, "")) != common]
    first = next(who["rank"] for who in all_ranks if str(who.get(name, "")) == common)
    ranks = f"{count} ranks have" if count > 1 else f"rank {first} has"
    return f"{name} differs: {ranks} {common!r}, {some_of(odd, _MOST_NAMED)}"


def _settings_that_differ(all_ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same for each named setting of the configuration."""
    settings = [
        {"rank": who["rank"], **{f"config {name!r}": value for name, value in (who.get("settings") or {}).items()}}
        for who in all_ranks
    ]
    names = sorted({name for one in settings for name in one} - {"rank"})
    return [text for name in names if (text := _difference(name, settings))][:_MOST_NAMED]


def check_mapping(board: Board, mine: Mapping[str, Any], limit_s: float) -> list[dict[str, Any]]:
    """All ranks' descriptions, on rank 0; raises on every rank what is wrong with them.

    Blocks up to `limit_s`: for rank 0's verdict, and rank 0 for the others' descriptions.

    Raises:
        RanksDiffer: the ranks are not set up alike, or some did not come.
        PeerFailed: another rank failed meanwhile.
    """
    board.put(f"who/{board.rank}", dict(mine))
    everyone: list[dict[str, Any]] = []
    if board.rank == 0:
        try:
            everyone, wrong = _compared(board, limit_s)
        except PeerFailed:
            raise
        except Exception:
            board.put("mapping", [])  # the others must not wait for a comparison that is not made
            raise
        board.put("mapping", wrong)
    elif board.wait_for(["mapping"], limit_s + 5.0):
        _raise_if_failed(board)
        log(
            "unhang",
            f"rank 0 has not compared the ranks within {limit_s + 5.0:.0f} s; rank {board.rank} goes on without",
        )
        return []
    else:
        wrong = board.get("mapping")
    if wrong:
        raise RanksDiffer("; ".join(wrong))
    return everyone


def _compared(board: Board, limit_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """All descriptions, and what is wrong with them."""
    missing = board.wait_for([f"who/{r}" for r in range(board.world_size)], limit_s)
    if missing:
        _raise_if_failed(board)
        names = ", ".join(m.removeprefix("who/") for m in missing[:_MOST_NAMED])
        return [], [f"{len(missing)} of {board.world_size} ranks did not come within {limit_s:.0f} s: {names}"]
    everyone = board.get_all([f"who/{r}" for r in range(board.world_size)])
    return everyone, faults(everyone)


def _raise_if_failed(board: Board) -> None:
    failure = board.failure()
    if failure is not None:
        raise peer_failed(failure)


def flight_recorder_size(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Two lines for people: how many entries each rank keeps and about how many MB, and a warning, empty if all is well."""
    environ = os.environ if environ is None else environ
    name, text = next(((n, environ[n].strip()) for n in VARIABLES if environ.get(n, "").strip()), ("", ""))
    if not name:
        return f"flight recorder: torch's own size, {_entries(DEFAULT_ENTRIES)} per rank since torch 2.13", ""
    if not (text.isascii() and text.isdecimal()):
        return f"flight recorder: {name}={text}", f"{name}={text} is not a number of entries"
    entries = int(text)
    if not entries:
        return f"flight recorder: off ({name}=0)", ""
    warning = ""
    if entries > MOST_ENTRIES:
        warning = (
            f"{name}={entries} is a number of entries, not of bytes: up to {_megabytes(entries)} of host memory per rank; "
            f"{DEFAULT_ENTRIES} to {MOST_ENTRIES} are enough"
        )
    return f"flight recorder: {_entries(entries)} per rank ({name})", warning


def _entries(entries: int) -> str:
    return f"{entries:,} entries, about {_megabytes(entries)}"


def _megabytes(entries: int) -> str:
    return f"{max(entries * BYTES_PER_ENTRY / 1e6, 0.1):,.1f} MB"
