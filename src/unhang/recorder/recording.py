"""The one recording of this process, or none: every wrapper asks `recording.current` first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .page import Page
from .writing import append_json, write_json

T = TypeVar("T")
_MOST_NOTES = 64


class Recording:
    """The folder, the page and the identity of one training process.

    `inherited_fds` are closed in forked children: a data loader's worker must not keep our sockets open.
    `at_fork` undoes, in such a child, what only concerns the rank itself.
    """

    def __init__(self, folder: str, page: Page, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.page = page
        self.identity = identity
        self.pid = os.getpid()
        self.main_thread_id = threading.main_thread().ident or 0
        self.inherited_fds: list[int] = []
        self.at_fork: list[Callable[[], None]] = []
        self.counts: dict[tuple[int, str], int] = {}
        self.groups_written: set[str] = set()
        self.noted: set[str] = set()
        self.has_error = False
        self.has_flight = False
        self.exit_code: int | None = None
        self.is_exit_known = False

    def path(self, name: str) -> str:
        """A file of this rank's folder."""
        return os.path.join(self.folder, name)

    def count(self, kind: int, group: str) -> int:
        """The number of this call among those of its kind and group, from 1."""
        key = (kind, group)
        number = self.counts.get(key, 0) + 1
        self.counts[key] = number
        return number

    def note(self, what: str, reason: str) -> None:
        """Write down once that a facility could not be had."""
        if what in self.noted or len(self.noted) >= _MOST_NOTES:
            return
        self.noted.add(what)
        append_json(self.path("notes.jsonl"), {"what": what, "reason": reason[:1000]})

    def write_identity(self) -> None:
        """Write identity.json again, after something in it became known."""
        write_json(self.path("identity.json"), self.identity)


current: Recording | None = None


def note(what: str, reason: str) -> None:
    """Write a note if there is a recording to write it to."""
    if current is not None:
        current.note(what, reason)


def attempt(what: str, action: Callable[..., T], *args: Any) -> T | None:
    """Call `action`; whatever goes wrong in our own code ends in a note, never in the training."""
    try:
        return action(*args)
    except Exception as error:  # noqa: BLE001
        try:
            note(what, f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001
            # An exception whose str() raises.
            return None
        return None


def forget_in_child() -> None:
    """After a fork: the child is not the rank. It writes nothing and holds nothing of ours."""
    global current
    parent, current = current, None
    if parent is None:
        return
    for undo in parent.at_fork:
        try:
            undo()
        except Exception:  # noqa: BLE001
            # There is nowhere to write a note: the folder belongs to the parent.
            continue
    for fd in parent.inherited_fds:
        try:
            os.close(fd)
        except OSError:
            continue
