"""The cases of circle-of-sockets."""

from __future__ import annotations

import linecache
from collections.abc import Callable

from unhang.model import Case, Frame, ThreadStack
from unhang.model.frames import KernelWait
from unhang.testing import Fires, Quiet, make_case, raised

_PROGRAM, _ONE_WAY = "/example/circle_of_sockets/ring.py", "/example/circle_one_way/ring.py"
_SOURCE = """def exchange(rank, to_next, from_last, flat):
    to_next.sendall(flat)
    got = receive(from_last)
    return got

def answer(to_next, from_last):
    got = receive(from_last)
    to_next.sendall(got)
    return got

def receive(sock):
    return sock.recv(1 << 20)
"""
for _path, _text in ((_PROGRAM, _SOURCE), (_ONE_WAY, "def push(sock, flat):\n    sock.sendall(flat)\n")):
    linecache.cache[_path] = (len(_text), None, _text.splitlines(keepends=True), _path)
_SENDS, _READS, _IN_ANSWER = (
    Frame(_PROGRAM, 2, "exchange"),
    Frame(_PROGRAM, 12, "receive"),
    Frame(_PROGRAM, 7, "answer"),
)
_PUSH = Frame(_ONE_WAY, 2, "push")


def _circle(*paths: tuple[Frame, ...], call: str = "sendto", other: int = 1000, **given: object) -> Callable[[], Case]:
    """Three ranks, each in a call on the connection to the next one; all on the first path, the last rank on the last."""

    def made() -> Case:
        more = {
            r: {
                "stacks": (
                    ThreadStack(
                        "MainThread",
                        paths[-1] if r == 2 else paths[0],
                        is_main=True,
                        kernel=KernelWait(call, "socket", 0, other + (r + 1) % 3),
                    ),
                )
            }
            for r in range(3)
        }
        return make_case({r: [] for r in range(3)}, world=3, more=more, **{"hang": "suspected", **given})

    return made


_RECEIVES = (_READS, _IN_ANSWER)
CASES = {
    "circle-of-sockets": (
        Fires(_circle((_SENDS,)), (), 2),
        Fires(_circle(_RECEIVES, call="recvfrom"), (), 12),
        Quiet(
            _circle((_SENDS,), (Frame(_PROGRAM, 4, "exchange"),)),
            "one rank stands at another line: the others wait for it",
        ),
        Quiet(_circle((_PUSH,)), "the program reads nothing behind that line"),
        Quiet(_circle(_RECEIVES, call="recvfrom", other=5000), "each reads from a process that is no rank"),
        Quiet(_circle((_SENDS,), errors={1: raised("ValueError: x@main:2")}), "a rank has failed"),
    )
}
