"""Which rank this process is, and whether it is one at all: for the recorder, the guards and the injected faults."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

# Set by launchers for each training process, the most specific first.
RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE")
LOCAL_RANK = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "JSM_NAMESPACE_LOCAL_RANK",
)
LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher")
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

# Distinguishes a helper process that a rank starts (it inherits RANK) from the rank itself.
MARK = "UNHANG_RANK_ANNOUNCED"


def number_from(names: Sequence[str], environ: Mapping[str, str] | None = None) -> int | None:
    """The first of these variables that holds a number."""
    for name in names:
        text = (os.environ if environ is None else environ).get(name, "").strip()
        if text.isascii() and text.isdecimal():
            return int(text)
    return None


def with_group() -> Any:
    """torch.distributed, where the default group stands; None before and after, and where torch was built without it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def who() -> str:
    """`rank 3: `, for the beginning of a line; empty where no group stands."""
    with suppress(Exception):  # it may be destroyed at this moment
        dist = with_group()
        return f"rank {dist.get_rank()}: " if dist is not None else ""
    return ""


def command_line() -> list[str]:
    """The process's arguments from /proc, since sys.argv does not show what `-m` ran while torch is being imported."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [part.decode("utf-8", "replace") for part in file.read().split(b"\0")][:-1]
    except OSError:
        return list(sys.argv)


def _program(arguments: Sequence[str]) -> tuple[str, str]:
    """What Python runs: ("script", path), ("module", name) or ("code", text)."""
    at = 1
    while at < len(arguments) and arguments[at].startswith("-"):
        option = arguments[at]
        if option in ("-m", "-c") and at + 1 < len(arguments):
            return ("module" if option == "-m" else "code"), arguments[at + 1]
        at += 2 if option in _OPTIONS_WITH_VALUE else 1
    return "script", arguments[at] if at < len(arguments) else ""


def is_launcher(arguments: Sequence[str]) -> bool:
    """Whether this is torchrun or its like. Some clusters give the launcher itself a RANK: that of the node."""
    kind, name = _program(arguments)
    if kind == "script":
        return os.path.basename(name) in _LAUNCHERS
    return kind == "module" and name.startswith((*_LAUNCHERS, *_LAUNCHER_MODULES))


def _is_multiprocessing_child(arguments: Sequence[str]) -> bool:
    """Workers of a data loader and multiprocessing's own servers inherit RANK and import torch."""
    kind, text = _program(arguments)
    if kind == "code" and "multiprocessing" in text:
        return True
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_helper_of_a_rank(rank: int, environ: Mapping[str, str]) -> bool:
    mark = environ.get(MARK, "")
    return mark.startswith(f"{rank}:") and mark != f"{rank}:{os.getpid()}"


def _on_first_node(environ: Mapping[str, str]) -> int | None:
    """Lightning tells a process that it starts only its number on the node: on the first node this is the rank."""
    is_first = environ.get("NODE_RANK", "").strip() == "0" and number_from(WORLD_SIZE[:1], environ) is not None
    return number_from(LOCAL_RANK[:1], environ) if is_first else None


def rank_at_import() -> int | None:
    """The rank, if it is certain before init_process_group: else that call shows who is a rank."""
    rank = number_from(RANK)
    if rank is None and (rank := _on_first_node(os.environ)) is None:
        return None
    arguments = command_line()
    if is_launcher(arguments) or _is_multiprocessing_child(arguments) or _is_helper_of_a_rank(rank, os.environ):
        return None
    return rank
