"""Faults of one process: it or a worker of its loader dies, stops, raises, sits in its own code, is slow, comes late, loses its connections, or cannot write."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import program
from .fault import (
    BATCH,
    CALL,
    DATA_FAMILY,
    EVER_S,
    RANK,
    STEP,
    Armed,
    Fault,
    Parameter,
    Ready,
    from_now_on,
    once_at,
    rank_of,
    seconds,
    sleep_delay,
)
from .program import COLLECTIVES, Call

_STEPS = "optimizer step, and no explicit collective call"
_WHEN = (RANK, STEP, CALL)
Delay = Callable[[float, int], float]
"""The delay of a step from the parameter `delay` and the number of slow steps so far."""
_kept: list[socket.socket] = []


def _steps(act: Callable[[Armed], None]) -> Ready:
    """Acts where an optimizer is about to step, or before the given explicit collective call."""
    at_step = once_at(program.at_step, lambda armed, _: act(armed))
    at_call = once_at(program.calls, lambda armed, _: act(armed), _is_collective)
    return lambda armed: at_call(armed) if armed.value("call") else at_step(armed)


def _is_collective(armed: Armed, call: Call) -> bool:
    return call.name in COLLECTIVES


def _signal(number: signal.Signals) -> Ready:
    def act(armed: Armed) -> None:
        armed.strikes(f"gets {number.name}")
        os.kill(os.getpid(), number)

    return _steps(act)


def _exit(armed: Armed) -> None:
    armed.strikes(f"ends with exit code {armed.value('code')}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(armed.value("code"))


def _raise(armed: Armed) -> None:
    armed.strikes("raises an exception")
    raise ValueError("a broken record in shard 17 (injected)")


def _interrupt(armed: Armed) -> None:
    armed.strikes("is told to end (SIGTERM)")
    os.kill(os.getpid(), signal.SIGTERM)
    armed.stay()


def _leak(armed: Armed) -> None:
    """A thread takes a lock and ends; the main thread wants it."""
    lock = threading.Lock()
    thief = threading.Thread(target=lock.acquire, name="took the lock and ended")
    thief.start()
    thief.join()
    armed.strikes("waits for a lock whose owner has ended")
    lock.acquire(timeout=armed.value("seconds"))


def _spin(armed: Armed) -> None:
    armed.strikes("loops without end")
    while True:
        pass


def _hold(armed: Armed) -> None:
    """A regular expression that needs 2^n steps: the GIL is held in one call."""
    armed.strikes("holds the GIL in one call")
    re.match(r"(a+)+$", "a" * 64 + "b")


def _wait(armed: Armed) -> None:
    armed.strikes("waits for an event that never comes")
    threading.Event().wait(armed.value("seconds"))


def _out_of_memory(armed: Armed, _module: object) -> None:
    armed.strikes("runs out of device memory")
    error: Any = sys.modules["torch"].OutOfMemoryError
    raise error("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB (injected)")


def _descriptors(armed: Armed) -> None:
    """Lowers the limit to what is open now: whoever opens something next is refused."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    armed.strikes(f"may open no more than {highest} descriptors")
    filler = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        while True:
            filler.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return


def _never_ends(armed: Armed, _optimizer: object) -> None:
    armed.strikes("starts a thread that will not end")
    threading.Thread(target=armed.stay, name="thread that does not end").start()


_PROCESS_FAMILY = "process"
_CODE = Parameter("code", "the exit code", 0, 0, 255)
_EVER = (*_WHEN, seconds())
_STUCK = ("rank-stuck-in-user-code",)
OF_PROCESS = (
    Fault("sigkill", _PROCESS_FAMILY, "is killed", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False, _STEPS,
          _signal(signal.SIGKILL)),
    Fault("sigabrt", _PROCESS_FAMILY, "aborts", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False, _STEPS,
          _signal(signal.SIGABRT)),
    Fault("sigsegv", _PROCESS_FAMILY, "reads memory that is not there", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False,
          _STEPS, _signal(signal.SIGSEGV)),
    Fault("sigterm", _PROCESS_FAMILY, "is told to end", _EVER, ("external-signal",), "external-signal", False, _STEPS,
          _steps(_interrupt)),
    Fault("sigstop", _PROCESS_FAMILY, "is stopped", _WHEN, ("rank-frozen",), "rank-frozen", True, _STEPS,
          _signal(signal.SIGSTOP)),
    Fault("early_exit", _PROCESS_FAMILY, "ends before the others, without an error", (*_WHEN, _CODE), ("rank-exited-early",),
          "rank-exited-early", False, _STEPS, _steps(_exit)),
    Fault("rank_raises", _PROCESS_FAMILY, "raises an exception", _WHEN, ("user-exception",), "user-exception", False, _STEPS,
          _steps(_raise)),
    Fault("leaked_lock", _PROCESS_FAMILY, "waits for a lock that nobody will release", _EVER, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_leak)),
    Fault("event_wait", _PROCESS_FAMILY, "waits for an event that never comes", _EVER, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_wait)),
    Fault("endless_loop", _PROCESS_FAMILY, "loops without end", _WHEN, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_spin)),
    Fault("gil_held", _PROCESS_FAMILY, "holds the GIL in one long call", _WHEN, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_hold)),
    Fault("oom", _PROCESS_FAMILY, "runs out of device memory in a forward pass", (RANK, STEP), ("gpu-out-of-memory",), "gpu-oom",
          False, "forward pass of a module", once_at(program.forwards, _out_of_memory)),
    Fault("fd_limit", _PROCESS_FAMILY, "has no descriptor left for whatever it opens next", _WHEN, ("fd-exhaustion",),
          "fd-exhaustion", False, _STEPS, _steps(_descriptors)),
    Fault("shutdown_hang", _PROCESS_FAMILY, "has a thread that keeps the process from ending", (RANK, STEP, seconds()),
          ("shutdown-hang",), "shutdown-hang", True, "optimizer step",
          once_at(program.at_step, _never_ends)),
)  # fmt: skip


def _slow(how: str, delay_of: Delay) -> Ready:
    def make_ready(armed: Armed) -> None:
        slow_steps = itertools.count()
        from_now_on(
            program.at_step,
            lambda armed, _: f"is slow from now on: {how.format(armed.value('delay'))}",
            lambda armed, _: time.sleep(delay_of(armed.value("delay"), next(slow_steps))),
        )(armed)

    return make_ready


def _periodic(armed: Armed) -> None:
    period = int(armed.value("period"))
    _slow(f"{{:g}} s in every {period} steps", lambda delay, n: 0 if n % period else delay)(armed)


def _jump(armed: Armed, _optimizer: object) -> None:
    """What the program asks of time.time() and time.time_ns() is ahead from now on; the machine's clock stays."""
    by_s = float(armed.value("seconds"))
    armed.strikes(f"has a clock that jumps by {by_s:g} s")
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + by_s
    time.time_ns = lambda: now_ns() + int(by_s * 1e9)


_TIME_FAMILY = "time"
_STEP = "optimizer step"
_STEP_DELAY = Parameter("delay", "seconds by which a step is slower", 0.3, 0.001, 3600, is_whole=False)
_GROWTH = Parameter(
    "delay", "seconds by which each step is slower than the one before", 0.05, 0.001, 3600, is_whole=False
)
_PERIOD = Parameter("period", "every how many steps", 3, 2, 10**6)
_JUMP = Parameter("seconds", "how far the clock jumps", 3600, -(10**9), 10**9, is_whole=False)
OF_TIME = (
    Fault("straggler", _TIME_FAMILY, "every step is slow by the same time", (RANK, STEP, _STEP_DELAY), ("straggler",), "straggler",
          False, _STEP, _slow("{:g} s in every step", lambda delay, _n: delay)),
    Fault("straggler_growing", _TIME_FAMILY, "every step is slower than the one before", (RANK, STEP, _GROWTH),
          ("straggler",), "straggler", False, _STEP, _slow("{:g} s more in each step", lambda delay, n: delay * (n + 1))),
    Fault("straggler_periodic", _TIME_FAMILY, "some steps are slow", (RANK, STEP, _STEP_DELAY, _PERIOD), ("straggler",),
          "straggler", False, _STEP, _periodic),
    Fault("clock_jump", _TIME_FAMILY, "the program's clock jumps", (RANK, STEP, _JUMP), ("clock-jump",), "", False, _STEP,
          once_at(program.at_step, _jump)),
)  # fmt: skip


def _at_start(act: Callable[[Armed], None]) -> Ready:
    """Acts before the rank calls init_process_group."""
    return once_at(program.calls, lambda armed, _: act(armed), lambda _, call: call.name == "init_process_group")


def _late(armed: Armed) -> None:
    armed.strikes(f"joins the group {armed.value('seconds'):g} s late")
    armed.stay()


def _unset(armed: Armed) -> None:
    armed.strikes(f"does not know {armed.value('name')}")
    os.environ.pop(str(armed.value("name")), None)


def _refused(armed: Armed) -> None:
    """A port of the same address on which nobody listens: bound, so that it stays free, but not listening."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    _kept.append(taken)
    port = taken.getsockname()[1]
    armed.strikes(f"looks for the store on port {port}, where nobody listens")
    os.environ["MASTER_PORT"] = str(port)


def _occupied(armed: Armed) -> None:
    port = int(os.environ.get("MASTER_PORT", "0"))
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # somebody else has it already
        taken.bind(("", port))
        taken.listen()
    _kept.append(taken)
    armed.strikes(f"finds port {port} taken")


def _connections() -> list[socket.socket]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            held = socket.socket(fileno=os.dup(int(name)))
            if held.family in (socket.AF_INET, socket.AF_INET6) and held.type == socket.SOCK_STREAM and _is_open(held):
                found.append(held)
            else:
                held.close()
    return found


def _is_open(held: socket.socket) -> bool:
    try:
        held.getpeername()
    except OSError:
        return False
    return True


def _lost(armed: Armed) -> None:
    held = _connections()
    armed.strikes(f"loses its {len(held)} TCP connections")
    for connection in held:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


_NETWORK_FAMILY = "network"
_INIT = "init_process_group"
_NAME = Parameter("name", "the variable", "MASTER_ADDR")
_CALL_DELAY = Parameter("delay", "seconds by which each call is late", 0.2, 0.001, 3600, is_whole=False)
OF_NETWORK = (
    Fault("late_rank", _NETWORK_FAMILY, "joins the group minutes late", (RANK, seconds(600)), ("rendezvous-incomplete",),
          "rendezvous-incomplete", True, _INIT, _at_start(_late)),
    Fault("unset_variable", _NETWORK_FAMILY, "does not get a variable of the launcher", (RANK, _NAME),
          ("launcher-misuse", "user-exception"), "launcher-misuse", False, _INIT, _at_start(_unset)),
    Fault("refused_port", _NETWORK_FAMILY, "looks for the store on a port where nobody listens", (RANK,),
          ("rendezvous-endpoint",), "rendezvous-endpoint", False, _INIT, _at_start(_refused)),
    Fault("port_in_use", _NETWORK_FAMILY, "the store's port is taken", (rank_of(0),), ("port-in-use",), "port-in-use", False,
          _INIT, _at_start(_occupied)),
    Fault("lost_connections", _NETWORK_FAMILY, "loses all TCP connections", (RANK, STEP, CALL), ("network-unstable",),
          "network-unstable", False, "optimizer step, and no explicit collective call",
          _steps(_lost)),
    Fault("slow_link", _NETWORK_FAMILY, "makes every explicit collective call late", (RANK, STEP, CALL, _CALL_DELAY), ("straggler",),
          "straggler", False, "explicit collective call",
          from_now_on(program.calls, lambda armed, call: f"communicates {armed.value('delay'):g} s later from {call.name} on",
                      sleep_delay, _is_collective)),
)  # fmt: skip


def _is_own(armed: Armed, function: str) -> bool:
    return not program.is_helper


def _late_write(armed: Armed, function: str) -> None:
    armed.strikes(f"needs {armed.value('seconds'):g} s for {function}")
    armed.stay()


def _refused_write(armed: Armed, function: str) -> None:
    number = getattr(errno, str(armed.value("error")))
    armed.strikes(f"is refused by the disk in {function} ({armed.value('error')})")
    raise OSError(number, os.strerror(number))


_FILE_FAMILY = "files"
_SAVES = "torch.save and no open() of a file to write"
_NUMBER = Parameter("call", "the write of the rank, from 1, that is struck", 1, 1, 10**9)
_ERROR = Parameter("error", "what the disk says", "ENOSPC", choices=("ENOSPC", "EIO", "EROFS", "EDQUOT", "ESTALE"))
_WRITE_DELAY = Parameter("delay", "seconds that each file takes longer", 0.3, 0.001, 3600, is_whole=False)
OF_FILES = (
    Fault("slow_save", _FILE_FAMILY, "rank 0 saves for minutes while the others wait", (rank_of(0), _NUMBER, seconds(600)),
          ("slow-rank0-work",), "slow-rank0-work", True, "torch.save",
          once_at(program.writes, _late_write, lambda armed, function: _is_own(armed, function) and function == "torch.save")),
    Fault("stuck_checkpoint", _FILE_FAMILY, "a save never returns", (RANK, _NUMBER, seconds()),
          ("rank-stuck-in-user-code", "slow-rank0-work"), "rank-stuck-in-user-code", True, _SAVES,
          once_at(program.writes, _late_write, _is_own)),
    Fault("slow_disk", _FILE_FAMILY, "every file that one rank writes takes longer", (RANK, _NUMBER, _WRITE_DELAY),
          ("straggler",), "straggler", False, _SAVES,
          from_now_on(program.writes, lambda armed, function: f"needs {armed.value('delay'):g} s longer for every file that it writes, "
                      f"from this {function} on", sleep_delay, _is_own)),
    Fault("failing_disk", _FILE_FAMILY, "a write is refused", (RANK, _NUMBER, _ERROR),
          ("user-exception",), "user-exception", False, _SAVES, once_at(program.writes, _refused_write, _is_own)),
)  # fmt: skip


def _worker() -> Any:
    return sys.modules["torch.utils.data"].get_worker_info()


def _in_worker(act: Callable[[Armed, int], None]) -> Ready:
    """Calls `act` in the worker process that reads the batch whose turn it is."""
    return once_at(program.items, lambda armed, _: act(armed, _worker().id), lambda *_: _worker() is not None)


def _dies(armed: Armed, worker: int) -> None:
    armed.strikes(f"loses loader worker {worker}, which ends with exit code 7")
    os._exit(7)


def _bus_error(armed: Armed, worker: int) -> None:
    armed.strikes(f"loses loader worker {worker} to SIGBUS, as if /dev/shm were full")
    os.kill(os.getpid(), signal.SIGBUS)


def _worker_stuck(armed: Armed, worker: int) -> None:
    armed.strikes(f"has loader worker {worker} stuck")
    armed.stay()


_WORKERS = "DataLoader with num_workers > 0"
OF_WORKERS = (
    Fault("stuck_worker", DATA_FAMILY, "a worker of the loader is stuck", (RANK, BATCH, seconds(EVER_S)),
          ("dataloader-hang",), "dataloader-hang", True, _WORKERS, _in_worker(_worker_stuck)),
    Fault("worker_dies", DATA_FAMILY, "a worker of the loader ends", (RANK, BATCH),
          ("user-exception",), "user-exception", False, _WORKERS, _in_worker(_dies)),
    Fault("shm_exhausted", DATA_FAMILY, "a worker of the loader dies of SIGBUS, as where /dev/shm is full", (RANK, BATCH),
          ("shm-too-small",), "shm-too-small", False, _WORKERS, _in_worker(_bus_error)),
)  # fmt: skip
