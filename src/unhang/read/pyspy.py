"""`py-spy dump --json`: a list of threads, frames innermost first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unhang.model import Frame, Source, ThreadStack
from unhang.read.fields import text, whole, without_recorder
from unhang.read.files import read_json, unreadable

CONTROL_THREAD = "unhang-control"


def read_pyspy(path: Path) -> tuple[ThreadStack, ...]:
    """The stacks of one process.

    Raises:
        UnreadableInput: it is no output of py-spy.
    """
    threads = read_json(path)
    if not isinstance(threads, list) or not all(isinstance(t, dict) for t in threads):
        raise unreadable(str(path), "py-spy's list of threads is expected", "write it with 'py-spy dump --json'")
    return read_threads(threads, str(path))


def read_threads(threads: Sequence[Mapping[str, object]], path: str = "") -> tuple[ThreadStack, ...]:
    """The stacks in a list of py-spy's threads."""
    return tuple(_thread(t, path) for t in threads if t.get("thread_name") != CONTROL_THREAD)


def _thread(thread: Mapping[str, object], path: str) -> ThreadStack:
    name, os_id, pid = text(thread, "thread_name"), whole(thread, "os_thread_id"), whole(thread, "pid")
    active, owns_gil = thread.get("active"), thread.get("owns_gil")
    frames = thread.get("frames")
    return ThreadStack(
        name=name or (f"thread {os_id}" if os_id is not None else "thread"),
        frames=without_recorder(map(_frame, frames)) if isinstance(frames, list) else (),
        is_main=os_id == pid if os_id is not None and pid is not None else name == "MainThread",
        is_active=active if isinstance(active, bool) else None,
        owns_gil=owns_gil if isinstance(owns_gil, bool) else None,
        os_thread_id=os_id,
        process_id=pid,
        ident=whole(thread, "thread_id"),
        source=Source("py-spy", path),
    )


def _frame(frame: object) -> Frame:
    """py-spy writes qualified names (`Learner.train`), everything else bare ones: bare it is."""
    fields = frame if isinstance(frame, dict) else {}
    qualified = text(fields, "name", "?")
    name = "store_wait" if qualified.startswith("_watched_") else qualified.rsplit(".", 1)[-1]
    return Frame(text(fields, "filename"), max(0, whole(fields, "line") or 0), name)
