"""The cases of rpc-threads-taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.rules.notation import Later, make_case
from unhang.model import Frame, ThreadStack
from unhang.testing import Fires, Quiet

_RPC = "/site-packages/torch/distributed/rpc/"
_WAIT = Frame("/usr/lib/python3.11/threading.py", 327, "wait")
_PUSH = Frame("server.py", 49, "push")
_ANSWERS = Frame(f"{_RPC}internal.py", 209, "_run_function")
_CALLS = ThreadStack(
    "MainThread", (Frame(f"{_RPC}api.py", 842, "rpc_sync"), Frame("train.py", 46, "run")), is_main=True
)
_SHUTS_DOWN = ThreadStack("MainThread", (_WAIT, Frame(f"{_RPC}api.py", 382, "shutdown"), Frame("train.py", 37, "main")), is_main=True)  # fmt: skip


def _thread(*frames: Frame, **more: Any) -> ThreadStack:
    return ThreadStack("Dummy-1", (*frames, _ANSWERS), is_main=False, **more)


_WAITS = _thread(_WAIT, _PUSH)


def _case(server: tuple[ThreadStack, ...], callers: int = 3, more: Mapping[int, Any] | None = None) -> Later:
    stacks = {r: {"stacks": (_CALLS,)} for r in range(1, callers + 1)}
    given = {0: {"stacks": (*server, _SHUTS_DOWN)}, **stacks, **(more or {})}
    return make_case({}, world=4, hang="suspected", stacks={}, more=given)


CASES = {
    "rpc-threads-taken": (
        Fires(_case((_WAITS, _WAITS)), (0,), 49),
        Quiet(_case((_WAITS, _WAITS), callers=2), "no more ranks call than there are threads"),
        Quiet(_case((_WAITS, _thread(_PUSH, is_active=True))), "a thread is at work"),
        Quiet(_case((_WAITS,), more={3: {"stacks": (_WAITS, _CALLS)}}), "two ranks answer calls"),
    ),
}
