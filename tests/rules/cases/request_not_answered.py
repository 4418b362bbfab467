"""The cases of request-not-answered."""

from __future__ import annotations

import linecache
from collections.abc import Callable

from unhang.model import Case, Frame, ThreadStack
from unhang.model.frames import KernelWait
from unhang.testing import Fires, Quiet, make_case, raised

_LIB = "/usr/lib/python3.11"
_PROGRAM = "/example/request_not_answered/service.py"
_SOURCE = """class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.round.wait_for(self.complete)
        self.reply()

def reward(url):
    return urllib.request.urlopen(url).read()
"""
linecache.cache[_PROGRAM] = (len(_SOURCE), None, _SOURCE.splitlines(keepends=True), _PROGRAM)
_SERVES = (Frame(f"{_LIB}/socketserver.py", 235, "serve_forever"), Frame(f"{_LIB}/threading.py", 982, "run"))
_HANDLES = (Frame(f"{_LIB}/socketserver.py", 361, "finish_request"), *_SERVES)
_WAIT, _SELECT = Frame(f"{_LIB}/threading.py", 327, "wait"), Frame(f"{_LIB}/selectors.py", 415, "select")
_POST, _ASKS = Frame(_PROGRAM, 3, "do_POST"), Frame(_PROGRAM, 7, "reward")
_READS = Frame(f"{_LIB}/socket.py", 706, "readinto")


def _served(*threads: tuple[Frame, ...], of: int = 0, active: bool = False, **given: object) -> Callable[[], Case]:
    """Three ranks that ask the process of rank `of`, or another one, and the threads of that."""

    def made() -> Case:
        main = ThreadStack(
            "MainThread", (_READS, _ASKS), is_main=True, kernel=KernelWait("recvfrom", "socket", 0, 1000 + of)
        )
        own = tuple(ThreadStack(f"service-{i}", frames, is_active=active) for i, frames in enumerate(threads))
        more = {r: {"stacks": (main, *(own if r == 0 else ()))} for r in range(3)}
        return make_case(
            {r: ["barrier@main:1"] for r in range(3)}, world=3, more=more, **{"hang": "suspected", **given}
        )

    return made


_HELD = (_WAIT, _POST, *_HANDLES)
CASES = {
    "request-not-answered": (
        Fires(_served(_HELD), (0,), 3),
        Fires(_served((_WAIT, _POST, Frame(f"{_LIB}/threading.py", 982, "run")), (_SELECT, *_SERVES)), (0,), 3),
        Quiet(_served((_POST, *_HANDLES), active=True), "what serves is at work"),
        Quiet(
            _served(_HELD, (_WAIT, Frame(_PROGRAM, 4, "do_POST"), *_SERVES)),
            "the threads of the server wait at several lines",
        ),
        Quiet(_served(_HELD, of=9), "another process answers, which is no rank"),
        Quiet(_served(_HELD, errors={1: raised("ValueError: x@main:2")}), "a rank has failed"),
        Quiet(_served((_SELECT, *_SERVES)), "the server waits for its next request"),
    )
}
