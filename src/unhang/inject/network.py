"""Faults of the start and of connections: a rank that comes late or never, a wrong port, lost connections."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from . import points
from .armed import Armed
from .fault import CALL, RANK, STEP, Fault, Parameter, rank_of, seconds
from .points import Call
from .process import strike_steps

_kept: list[socket.socket] = []


def _at_start(act: Callable[[Armed], None]) -> Any:
    """Acts before the rank calls init_process_group."""

    def make(armed: Armed) -> None:
        def listen(call: Call) -> None:
            if call.name == "init_process_group" and armed.is_due:
                act(armed)

        points.calls.append(listen)

    return make


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
    """The established TCP connections of this process."""
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


def _delayed(armed: Armed) -> None:
    """Each call of the rank takes longer, as over a slow link."""

    def listen(call: Call) -> None:
        if call.name not in points.COLLECTIVES:
            return
        if not armed.has_struck and armed.is_due:
            armed.strikes(f"communicates {armed.value('delay'):g} s later from {call.name} on")
        if armed.has_struck and armed.is_here:
            time.sleep(armed.value("delay"))

    points.calls.append(listen)


_FAMILY = "network"
_INIT = "init_process_group"
_NAME = Parameter("name", "the variable", "MASTER_ADDR")
_DELAY = Parameter("delay", "seconds by which each call is late", 0.2, 0.001, 3600, is_whole=False)
FAULTS = (
    Fault("late_rank", _FAMILY, "joins the group minutes late", (RANK, seconds(600)), ("rendezvous-incomplete",),
          "rendezvous-incomplete", True, _INIT, _at_start(_late)),
    Fault("unset_variable", _FAMILY, "does not get a variable of the launcher", (RANK, _NAME),
          ("launcher-misuse", "user-exception"), "launcher-misuse", False, _INIT, _at_start(_unset)),
    Fault("refused_port", _FAMILY, "looks for the store on a port where nobody listens", (RANK,),
          ("rendezvous-endpoint",), "rendezvous-endpoint", False, _INIT, _at_start(_refused)),
    Fault("port_in_use", _FAMILY, "the store's port is taken", (rank_of(0),), ("port-in-use",), "port-in-use", False,
          _INIT, _at_start(_occupied)),
    Fault("lost_connections", _FAMILY, "loses all TCP connections", (RANK, STEP, CALL), ("network-unstable",),
          "network-unstable", False, "optimizer step, and no explicit collective call",
          lambda armed: strike_steps(armed, _lost)),
    Fault("slow_link", _FAMILY, "makes every explicit collective call late", (RANK, STEP, CALL, _DELAY), ("straggler",),
          "straggler", False, "explicit collective call", _delayed),
)  # fmt: skip
