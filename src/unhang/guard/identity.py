"""Who this process is, what it runs, and whether all ranks agree on it before the first collective."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unhang.errors import RanksDiffer
from unhang.guard.board import Board

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE")
LOCAL_RANK = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "JSM_NAMESPACE_LOCAL_RANK",
)
_SAME = ("world_size", "torch", "code", "config", "backend", "timeout_s")
_MOST_NAMED = 8


def number_from(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> int | None:
    """The first of these variables that holds a number."""
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal():
            return int(text)
    return None


def digest(value: object) -> str:
    """A short hash of a configuration; equal for equal contents."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


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
    found = []
    owners: dict[tuple[str, str], list[int]] = {}
    for who in all_ranks:
        if who["device"]:
            owners.setdefault((who["host"], who["device"]), []).append(who["rank"])
    found += [
        f"ranks {', '.join(map(str, ranks))} on {host} use the same device {device}"
        for (host, device), ranks in owners.items()
        if len(ranks) > 1
    ]
    for name in _SAME:
        values = Counter(str(who.get(name, "")) for who in all_ranks)
        if len(values) > 1:
            common, count = values.most_common(1)[0]
            odd = [f"rank {w['rank']} has {w.get(name)!r}" for w in all_ranks if str(w.get(name, "")) != common]
            more = f" and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
            found.append(f"{name} differs: {count} ranks have {common!r}, {', '.join(odd[:_MOST_NAMED])}{more}")
    return found


def check_mapping(board: Board, mine: Mapping[str, Any], limit_s: float) -> list[dict[str, Any]]:
    """All ranks' descriptions, on rank 0; raises on every rank what is wrong with them.

    Blocks up to `limit_s`: for rank 0's verdict, and rank 0 for the others' descriptions.

    Raises:
        RanksDiffer: the ranks are not set up alike, or some did not come.
    """
    board.put(f"who/{board.rank}", dict(mine))
    everyone: list[dict[str, Any]] = []
    if board.rank == 0:
        missing = board.wait_for([f"who/{r}" for r in range(board.world_size)], limit_s)
        if missing:
            names = ", ".join(m.removeprefix("who/") for m in missing[:_MOST_NAMED])
            wrong = [f"{len(missing)} of {board.world_size} ranks did not come within {limit_s:.0f} s: {names}"]
        else:
            everyone = [board.get(f"who/{r}") for r in range(board.world_size)]
            wrong = faults(everyone)
        board.put("mapping", wrong)
    elif board.wait_for(["mapping"], limit_s + 5.0):
        raise RanksDiffer(f"rank 0 did not answer within {limit_s + 5.0:.0f} s")
    else:
        wrong = board.get("mapping")
    if wrong:
        raise RanksDiffer("; ".join(wrong))
    return everyone
