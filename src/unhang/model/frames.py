"""The frames of a thread, what it waits for outside of the job's calls, and whether it moves while it is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_STDLIB = re.compile(r"/lib(64)?/python3\.\d+/")
_NOT_USER = (
    "site-packages/",
    "dist-packages/",
    "<frozen ",
    "<string>",
    "<__array_function__",
    "/unhang/inside/",
    "/unhang/recorder/",  # where the parts of inside/ lay when older runs were recorded
    "/unhang/guard/",
    "/unhang/integrations/",
    "/unhang/inject/",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `line` is 1-based; 0 where the line is not known."""

    file: str
    line: int
    function: str

    @property
    def is_user(self) -> bool:
        """Whether the frame belongs to the user's own code, not to torch, a library or the standard library."""
        return _is_user_file(self.file)

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} in {self.function}"


@lru_cache(maxsize=1 << 12)
def _is_user_file(file: str) -> bool:
    """Asked for each frame of each call, of few files."""
    if any(mark in file for mark in _NOT_USER) or _STDLIB.search(file):
        return False
    return "/" in file or file.endswith(".py")


def user_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The user's own frames, in the order given."""
    return tuple(f for f in frames if f.is_user)


@dataclass(frozen=True, slots=True)
class KernelWait:
    """The system call in which a thread waits. `file`: socket, pipe, terminal, "FIFO PATH", "file PATH"; empty where unknown.

    `holder`: the process that has the lock on the file; 0 where it is none, or not known. `peer`: that at the other end of a connection
    within the machine, likewise.
    """

    call: str
    file: str = ""
    holder: int = 0
    peer: int = 0


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """What a thread waits for within its process, as the recorder saw it. Threads are named by `ThreadStack.ident`.

    `kind`: thread, result, queue, event. `by`: the threads that can end the wait; empty where none was found. `name`: of the thread.
    """

    thread: int
    kind: str
    by: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task of asyncio that awaits something. `frames` are innermost first; `awaits`: names of the tasks that it awaits."""

    name: str
    frames: tuple[Frame, ...]
    awaits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What several looks from outside showed of a rank that runs without the recorder.

    `moved`: whether its main thread has in between; None where that cannot be told. `how`: by what. `changed`: whether anything of
    its stack or variables has, which an endless loop does too. `has_group`: the call in which it stands was given a group, whose
    members are not known. `unsent`: (peer, bytes) of connections that got rid of nothing. `device`, `busy`: its device, and percent.
    `group_number`: of the group that it makes, as its process counts them.
    """

    looks: int
    seconds: float
    moved: bool | None
    how: str = ""
    changed: bool = False
    has_group: bool = False
    unsent: tuple[tuple[str, int], ...] = ()
    device: int | None = None
    busy: int | None = None
    group_number: int | None = None
