"""Makes this process a recorded rank: its folder, page, files, sockets and thread."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from typing import Any

from .. import rank
from . import errors_seen, exits, recording
from .control import Control, start_server
from .page import Page
from .recording import Recording, attempt

_watched: set[str] = set()
_VARIABLES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "OMP_", "PYTORCH_", "UCX_", "FI_")
_OTHER_VARIABLES = ("SLURM_JOB_END_TIME",)
_MOST_VARIABLES, _LONGEST_VALUE = 100, 300


def announce_at_import() -> None:
    """Announce early, while the rank may still hang before init_process_group, where it is certain to be a rank."""
    found = rank.rank_at_import()
    if found is not None and (rec := _announce(found)) is not None:
        rec.identity["variables"] = _variables()  # before the program could change them
        rec.write_identity()


def announce_at_init(explicit: Any, world_size: Any = None) -> Recording | None:
    """Announce at init_process_group if that has not happened; an explicit rank and world are the truth from here on."""
    number = explicit if isinstance(explicit, int) and explicit >= 0 else rank.number_from(rank.RANK)
    if number is None:
        return recording.current
    rec = recording.current or _announce(number)
    if rec is not None and number != rec.identity["rank"] and isinstance(explicit, int) and explicit >= 0:
        _change_rank(rec, number)
    if rec is not None and isinstance(world_size, int) and world_size > 0 and world_size != rec.identity["world_size"]:
        rec.identity["world_size"] = world_size  # those who wait here want to know for whom
        rec.write_identity()
    return rec


def complete_identity(rec: Recording) -> None:
    """Write what is known only after init_process_group."""
    torch = sys.modules.get("torch")
    rec.identity["torch_version"] = str(getattr(torch, "__version__", ""))
    rec.identity["argv"] = list(getattr(sys, "argv", []))
    rec.identity["variables_at_init"] = _variables()
    rec.identity["device"] = attempt("device of the rank", _device, torch)
    rec.write_identity()


def _folder_of(number: int) -> str:
    return os.path.join(os.path.abspath(os.environ["UNHANG_RUN_DIR"]), "ranks", f"r{number}-{os.getpid()}")


def _announce(number: int) -> Recording | None:
    """Without a folder there is no recording, and nothing is printed: the supervisor sees that the rank is absent."""
    if not os.environ.get("UNHANG_RUN_DIR"):
        return None
    folder = _folder_of(number)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return None
    rec = Recording(folder, Page(os.path.join(folder, "page.bin")), _identity_of(number))
    recording.current = rec
    os.environ[rank.MARK] = f"{number}:{rec.pid}"
    rec.write_identity()
    if rec.page.problem:
        rec.note("page.bin", rec.page.problem)
    _start(rec)
    return rec


def _start(rec: Recording) -> None:
    attempt("spare descriptors", recording.reserve_descriptors)
    attempt("faulthandler.txt", exits.start_faulthandler, rec)
    attempt("interrupt.txt", exits.keep_end, rec)
    attempt("permission to trace", exits.allow_tracer, rec)
    attempt("fr.sock", start_server, rec)
    control = attempt("control thread", Control, rec)
    if control is not None:
        attempt("control thread", control.start)
    attempt("exit.json", exits.watch, control.stop if control is not None else _nothing)
    # A forked child inherits these three; wrapped twice they would only be slower.
    if not _watched:
        _watched.add("hooks")
        attempt("error.json", errors_seen.watch_hooks)
        attempt("handled.jsonl", errors_seen.watch_handlers)


def _nothing() -> None:
    """There is no thread to stop."""


def _change_rank(rec: Recording, number: int) -> None:
    """The environment and init_process_group(rank=...) disagree. Open files and sockets survive the renaming."""
    folder = _folder_of(number)
    try:
        os.rename(rec.folder, folder)
    except OSError as error:
        rec.note("folder of the rank", str(error))
    else:
        rec.folder = folder
    rec.identity["rank"] = number
    os.environ[rank.MARK] = f"{number}:{rec.pid}"
    rec.write_identity()


def _identity_of(number: int) -> dict[str, Any]:
    """The content of identity.json, as far as it is known before init_process_group."""
    torch = sys.modules.get("torch")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return {
        "rank": number,
        "world_size": rank.number_from(rank.WORLD_SIZE),
        "local_rank": rank.number_from(rank.LOCAL_RANK),
        "local_world_size": rank.number_from(rank.LOCAL_WORLD_SIZE),
        "is_command": os.environ.get("UNHANG_TRACER_PID") == str(os.getppid()),
        "pid": os.getpid(),
        "host": platform.node(),
        "restart": int(restart) if restart.isdigit() else 0,
        "torch_version": str(getattr(torch, "__version__", "")),
        "backend": "",
        "python_version": platform.python_version(),
        "started_ns": time.time_ns(),
        "argv": list(getattr(sys, "argv", [])),
        "cwd": _working_folder(),
        "main_thread_id": threading.main_thread().ident,
        "page_format": 1,
        "libraries": [os.path.dirname(module.__file__ or "") for module in (os, sys.modules.get("torch")) if module],
        "output_bytes": _output_bytes(),
    }


def _variables() -> dict[str, str]:
    """The variables that decide how ranks communicate, as they are at this moment."""
    names = [name for name in sorted(os.environ) if name.startswith(_VARIABLES) or name in _OTHER_VARIABLES][
        :_MOST_VARIABLES
    ]
    return {name: os.environ[name][:_LONGEST_VALUE] for name in names if not name.endswith(("KEY", "TOKEN", "SECRET"))}


def _device(torch: Any) -> int | None:
    """The device that is current now; None before the first use of any, which this must not be."""
    cuda = getattr(torch, "cuda", None)
    return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else None


def _output_bytes() -> int | None:
    """How much of the job's output has been kept: what was there before is of an earlier attempt."""
    try:
        return os.stat(os.path.join(os.environ["UNHANG_RUN_DIR"], "output.log")).st_size
    except (KeyError, OSError):
        return None


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
