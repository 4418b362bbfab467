"""Faults of a process: it dies, stops, ends, raises, or sits in its own code."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import points
from .armed import Armed
from .fault import CALL, RANK, STEP, Fault, Parameter, seconds
from .points import COLLECTIVES, Call

_STEPS = "optimizer step, and no explicit collective call"
_WHEN = (RANK, STEP, CALL)


def strike_steps(armed: Armed, act: Callable[[Armed], None]) -> None:
    """Acts where an optimizer is about to step, or before the given explicit collective call."""
    if armed.value("call"):

        def listen(call: Call) -> None:
            if call.name in COLLECTIVES and armed.is_due:
                act(armed)

        points.calls.append(listen)
    else:
        points.steps.append(lambda _optimizer: act(armed) if armed.is_due else None)


def _signal(number: signal.Signals) -> Callable[[Armed], None]:
    def act(armed: Armed) -> None:
        armed.strikes(f"gets {number.name}")
        os.kill(os.getpid(), number)

    return lambda armed: strike_steps(armed, act)


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


def _out_of_memory(armed: Armed) -> None:
    def listen(_module: object) -> None:
        if armed.is_due:
            armed.strikes("runs out of device memory")
            error: Any = sys.modules["torch"].OutOfMemoryError
            raise error(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB (injected)"
            )

    points.forwards.append(listen)


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


def _never_ends(armed: Armed) -> None:
    def stuck() -> None:
        armed.stay()

    def begin(_optimizer: object) -> None:
        if armed.is_due:
            armed.strikes("starts a thread that will not end")
            threading.Thread(target=stuck, name="thread that does not end").start()

    points.steps.append(begin)


def _steps(act: Callable[[Armed], None]) -> Any:
    return lambda armed: strike_steps(armed, act)


_FAMILY = "process"
_CODE = Parameter("code", "the exit code", 0, 0, 255)
_EVER = (*_WHEN, seconds())
_STUCK = ("rank-stuck-in-user-code",)
FAULTS = (
    Fault("sigkill", _FAMILY, "is killed", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False, _STEPS,
          _signal(signal.SIGKILL)),
    Fault("sigabrt", _FAMILY, "aborts", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False, _STEPS,
          _signal(signal.SIGABRT)),
    Fault("sigsegv", _FAMILY, "reads memory that is not there", _WHEN, ("rank-crashed",), "rank-crashed-earlier", False,
          _STEPS, _signal(signal.SIGSEGV)),
    Fault("sigterm", _FAMILY, "is told to end", _EVER, ("external-signal",), "external-signal", False, _STEPS,
          _steps(_interrupt)),
    Fault("sigstop", _FAMILY, "is stopped", _WHEN, ("rank-frozen",), "rank-frozen", True, _STEPS,
          _signal(signal.SIGSTOP)),
    Fault("early_exit", _FAMILY, "ends before the others, without an error", (*_WHEN, _CODE), ("rank-exited-early",),
          "rank-exited-early", False, _STEPS, _steps(_exit)),
    Fault("rank_raises", _FAMILY, "raises an exception", _WHEN, ("user-exception",), "user-exception", False, _STEPS,
          _steps(_raise)),
    Fault("leaked_lock", _FAMILY, "waits for a lock that nobody will release", _EVER, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_leak)),
    Fault("event_wait", _FAMILY, "waits for an event that never comes", _EVER, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_wait)),
    Fault("endless_loop", _FAMILY, "loops without end", _WHEN, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_spin)),
    Fault("gil_held", _FAMILY, "holds the GIL in one long call", _WHEN, _STUCK,
          "rank-stuck-in-user-code", True, _STEPS, _steps(_hold)),
    Fault("oom", _FAMILY, "runs out of device memory in a forward pass", (RANK, STEP), ("gpu-out-of-memory",), "gpu-oom",
          False, "forward pass of a module", _out_of_memory),
    Fault("fd_limit", _FAMILY, "has no descriptor left for whatever it opens next", _WHEN, ("fd-exhaustion",),
          "fd-exhaustion", False, _STEPS, _steps(_descriptors)),
    Fault("shutdown_hang", _FAMILY, "has a thread that keeps the process from ending", (RANK, STEP, seconds()),
          ("shutdown-hang",), "shutdown-hang", True, "optimizer step", _never_ends),
)  # fmt: skip
