"""Makes this process a recorded rank: its folder, page and files, torch's C++ worker server, which needs no GIL, and the one thread of ours."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import rank
from . import errors_seen, exits, flight, recording
from .errors_seen import write_held
from .exits import AbortWatch
from .frames import write_waits_within
from .kept_errors import kept_errors
from .recording import Page, Recording, attempt
from .values import write_variables

_watched: set[str] = set()
_VARIABLES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "OMP_", "PYTORCH_", "UCX_", "FI_", "SLURM_JOB_END_TIME")
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


def meets_at(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Where a rank looks for the others, by the arguments of init_process_group and the variables; empty where it is given a store."""
    given = dict(zip(("backend", "init_method", "timeout", "world_size", "rank", "store"), args, strict=False)) | {
        **kwargs
    }
    method = str(given.get("init_method") or "env://")
    if given.get("store") is not None:
        return ""
    if not method.startswith("env://"):
        return method.partition("://")[2].partition("?")[0][:_MOST_OF_A_PLACE]
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"{address}:{port}"[:_MOST_OF_A_PLACE] if address and port else ""


_MOST_OF_A_PLACE = 100


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
    attempt("exit.json", exits.watch, control.stop if control is not None else lambda: None)
    # A forked child inherits these three; wrapped twice they would only be slower.
    if not _watched:
        _watched.add("hooks")
        attempt("error.json", errors_seen.watch_hooks)
        attempt("handled.jsonl", errors_seen.watch_handlers)


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
    names = [name for name in sorted(os.environ) if name.startswith(_VARIABLES)][:_MOST_VARIABLES]
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


# What answers the agent

_TURN_S = 0.25
_LONGEST_PATH = 100
# torch announces the server as a warning on file descriptor 2; the user's output stays what it was without us.
_GREETING = re.compile(rb"^[^\n]*WorkerServer\.cpp[^\n]*Server listening to UNIX[^\n]*\n", re.MULTILINE)


class Control:
    """Owns ctl.sock, a thread and a pipe that ends it. Blocks nobody: a daemon that the process does not wait for."""

    def __init__(self, rec: Recording) -> None:
        self._rec = rec
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._socket = attempt("ctl.sock", self._bind)
        self._abort_watch = AbortWatch(rec)
        self._thread = threading.Thread(target=self._run, name="unhang-control", daemon=True)
        rec.inherited_fds += [self._wake_reader, self._wake_writer]
        if self._socket is not None:
            rec.at_fork.append(self._socket.close)
        self._thread.start()

    def stop(self) -> None:
        """End the thread before the interpreter is taken apart. Blocks: up to 0.2 s, usually not at all."""
        self._stopping = True
        os.write(self._wake_writer, b"x")
        self._thread.join(0.2)

    def _bind(self) -> socket.socket | None:
        path = _path_of_socket(self._rec, "ctl.sock")
        if path is None:
            return None
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            bound.bind(path)
        except OSError:
            bound.close()
            raise
        return bound

    def _run(self) -> None:
        watched = [self._wake_reader] if self._socket is None else [self._wake_reader, self._socket.fileno()]
        while not self._stopping:
            try:
                ready = select.select(watched, [], [], _TURN_S)[0]
                self._turn(bool(self._socket and self._socket.fileno() in ready))
            except Exception as error:  # noqa: BLE001
                self._rec.note("control thread", f"{type(error).__name__}: {error}")
                time.sleep(_TURN_S)

    def _turn(self, is_asked: bool) -> None:
        words = self._rec.page.words
        words[recording.HEARTBEAT] = time.monotonic_ns()
        if words[recording.INITIALIZED] == 1:
            self._poll()
        if is_asked and self._socket is not None and b"dump" in self._drain(self._socket):
            attempt("variables.json", write_variables, self._rec)
            attempt("held.json", write_held, self._rec)
            kept = attempt("exceptions kept", kept_errors) or []
            attempt("waits.json", write_waits_within, self._rec, kept)
            attempt("flight.pickle", flight.dump, self._rec, "flight.pickle")
        self._abort_watch.check()

    def _poll(self) -> None:
        try:
            flight.poll_status(self._rec)
        except Exception as error:  # noqa: BLE001
            self._rec.page.words[recording.FAILED_POLLS] += 1
            self._rec.note("progress of the groups", f"{type(error).__name__}: {error}")

    @staticmethod
    def _drain(bound: socket.socket) -> list[bytes]:
        """All requests that wait: ten of them are one dump."""
        found: list[bytes] = []
        while len(found) < 64:
            try:
                found.append(bound.recv(64))
            except OSError:
                break
        return found


def _path_of_socket(rec: Recording, name: str) -> str | None:
    """Where a socket may be bound; None where that is too long a path."""
    path = rec.path(name)
    if len(path.encode()) > _LONGEST_PATH:
        rec.note(name, f"the path is too long for a unix socket: {path}")
        return None
    if os.path.exists(path):
        os.unlink(path)
    return path


def start_server(rec: Recording) -> None:
    """Serve <folder>/fr.sock for the life of the process."""
    make = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    if make is None:
        rec.note("fr.sock", "this torch has no _WorkerServer")
        return
    path = _path_of_socket(rec, "fr.sock")
    if path is None:
        return
    before = _open_fds()
    server = _without_greeting(lambda: make(path))
    # The destructor prints three lines at exit, and in a forked child, where the server's thread does not exist, it
    # aborts the process ("failed to listen"). An object that is never freed has no destructor.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    rec.inherited_fds += [fd for fd in _open_fds() - before if _is_bound_to(fd, path)]


def _open_fds() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        return set()


def _is_bound_to(fd: int, path: str) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return bool(copy.family == socket.AF_UNIX and copy.getsockname() == path)
    except OSError:
        return False


def _without_greeting(action: Callable[[], Any]) -> Any:
    """Call `action` with stderr kept back, and write what was kept back except the greeting."""
    try:
        kept = os.memfd_create("unhang-stderr")
        stderr = os.dup(2)
    except (OSError, AttributeError):
        return action()
    try:
        os.dup2(kept, 2)
        try:
            return action()
        finally:
            os.dup2(stderr, 2)
            _write_again(kept)
    finally:
        os.close(kept)
        os.close(stderr)


def _write_again(kept: int) -> None:
    size = os.fstat(kept).st_size
    rest = _GREETING.sub(b"", os.pread(kept, size, 0), count=1) if size else b""
    if rest:
        os.write(2, rest)
