"""What the threads and tasks of this process wait for within it: written when the agent asks, by the recorder's own thread."""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from . import recording
from .frames import Place, chain, is_user, user_places
from .recording import Recording, attempt, do_not_trace, preceded, write_whole

_MOST_THREADS, _MOST_TASKS, _MOST_FRAMES, _MOST_LOCALS = 64, 64, 24, 64
_DEEPEST, _MOST_GIVEN = 200, 4096
_NEAR = 8  # what a thread waits for is said by the library frames above the first one of the user

Frames = Mapping[int, FrameType]
# Where the user started a thread, or gave work to an executor: by the thread, or by the future of the work.
_given: WeakKeyDictionary[Any, tuple[Place, ...]] = WeakKeyDictionary()


def watch_threads(module: Any) -> None:
    """Remember where threads are started."""
    module.Thread.start = preceded(module.Thread.start, _remember)


def watch_executors(module: Any) -> None:
    """Remember where work is given to executors of threads."""
    original = module.ThreadPoolExecutor.submit

    @functools.wraps(original)
    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        future = original(self, *args, **kwargs)
        _remember(future)
        return future

    module.ThreadPoolExecutor.submit = do_not_trace(submit)


def _remember(what: Any, *_: Any) -> None:
    if recording.current is not None and len(_given) < _MOST_GIVEN:
        attempt("where threads get their work", lambda: _given.__setitem__(what, user_places(2)))


def _given_at(frame: FrameType) -> tuple[Place, ...]:
    """Where the work of a thread was given to it, else where it was started."""
    places: tuple[Place, ...] = ()
    for f in chain(frame, _DEEPEST):
        if f.f_code.co_filename.endswith("concurrent/futures/thread.py"):
            work = f.f_locals.get("self") if f.f_code.co_name == "run" else None  # an idle worker has none
            return _given.get(getattr(work, "future", None), ())
        if f.f_code.co_name == "_bootstrap" and f.f_code.co_filename.endswith("threading.py"):
            places = _given.get(f.f_locals.get("self"), ())
    return places


def write_waits_within(rec: Recording) -> None:
    """Write waits.json: what each thread waits for and which threads can end that, tasks of asyncio, the signal handler."""
    frames = dict(list(sys._current_frames().items())[:_MOST_THREADS])
    frames.pop(threading.get_ident(), None)
    main = frames.get(rec.main_thread_id)
    found = {
        "waits": [w for ident in frames if (w := attempt("waits.json", _wait_of, ident, frames)) is not None],
        "given": [{"thread": i, "frames": g} for i, f in frames.items() if (g := attempt("waits.json", _given_at, f))],
        "tasks": attempt("waits.json", _tasks, frames) or [],
        "in_handler": attempt("waits.json", _signal_handled, main) or "",
    }
    write_whole(rec.path("waits.json"), json.dumps(found).encode())


def _wait_of(ident: int, frames: Frames) -> dict[str, Any] | None:
    """The outermost wait that the standard library keeps for the user's frame."""
    found = None
    for frame in chain(frames[ident], _NEAR):
        code = frame.f_code
        if is_user(code.co_filename):
            break
        name = (code.co_filename.replace("\\", "/").rpartition("/")[2], code.co_name)
        if name in _WAITS:
            kind, by = _WAITS[name]
            awaited = frame.f_locals.get("self")
            found = {"thread": ident, "kind": kind, "by": by(awaited, ident, frames), "name": _name(awaited)}
    return found


def _name(awaited: Any) -> str:
    return awaited.name[:80] if isinstance(awaited, threading.Thread) else ""


def _thread_itself(awaited: Any, ident: int, frames: Frames) -> list[int]:
    number = awaited.ident if isinstance(awaited, threading.Thread) else None
    return [number] if number is not None and number in frames else []


def _worker_of(awaited: Any, ident: int, frames: Frames) -> list[int]:
    """The thread that runs the work of which this is the result."""
    return [i for i, frame in frames.items() if i != ident and _works_on(frame, awaited)]


def _works_on(frame: FrameType, awaited: Any) -> bool:
    for f in chain(frame, _MOST_FRAMES):
        code = f.f_code
        if code.co_name == "run" and code.co_filename.endswith("concurrent/futures/thread.py"):
            return getattr(f.f_locals.get("self"), "future", None) is awaited
    return False


def _who_knows(awaited: Any, ident: int, frames: Frames) -> list[int]:
    """Other threads that have the object in a variable, in what they call by name, or in an attribute of their `self`."""
    return [
        i for i, frame in frames.items() if i != ident and any(_knows(f, awaited) for f in chain(frame, _MOST_FRAMES))
    ]


def _attributes(owner: Any) -> list[Any]:
    """Its own attributes, without asking code of the user."""
    try:
        return list(object.__getattribute__(owner, "__dict__").values())[:_MOST_LOCALS]
    except AttributeError:
        return []


def _knows(frame: FrameType, awaited: Any) -> bool:
    variables = list(frame.f_locals.values())[:_MOST_LOCALS]
    if frame.f_code.co_name != "<module>":
        variables += [frame.f_globals.get(name) for name in frame.f_code.co_names]
    variables += _attributes(frame.f_locals.get("self"))
    return any(v is awaited for v in variables)


_WAITS: dict[tuple[str, str], tuple[str, Callable[[Any, int, Frames], list[int]]]] = {
    ("threading.py", "join"): ("thread", _thread_itself),
    ("_base.py", "result"): ("result", _worker_of),
    ("_base.py", "exception"): ("result", _worker_of),
    ("queue.py", "get"): ("queue", _who_knows),
    ("queue.py", "put"): ("queue", _who_knows),
    ("queue.py", "join"): ("queue", _who_knows),
    ("threading.py", "wait"): ("event", _who_knows),
}


def _signal_handled(frame: FrameType | None) -> str:
    """The name of the signal whose Python handler is on this stack."""
    codes = {id(f.f_code) for f in chain(frame, 100)}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = handler.__func__ if isinstance(handler, MethodType) else handler
        if isinstance(function, FunctionType) and id(function.__code__) in codes:
            return signal.Signals(number).name
    return ""


def _tasks(frames: Frames) -> list[dict[str, Any]]:
    """The tasks of every event loop that a thread runs, but for the one that runs: it is on the thread's stack."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return []
    found = []
    for loop in {id(loop): loop for frame in frames.values() if (loop := _loop_of(frame)) is not None}.values():
        runs = asyncio.current_task(loop)
        waiting = [t for t in asyncio.all_tasks(loop) if t is not runs][:_MOST_TASKS]
        found += [d for task in waiting if (d := attempt("waits.json", _describe, task)) is not None]
    return found


def _loop_of(frame: FrameType) -> Any:
    for f in chain(frame, 200):
        if f.f_code.co_name == "run_forever" and f.f_code.co_filename.endswith("asyncio/base_events.py"):
            return f.f_locals.get("self")
    return None


def _describe(task: Any) -> dict[str, Any]:
    places: list[list[object]] = []
    at = task.get_coro()
    while at is not None and len(places) < _MOST_FRAMES:
        frame = next((f for n in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(at, n, None))), None)
        if frame is not None:
            places.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        at = next(
            (a for n in ("cr_await", "gi_yieldfrom", "ag_await") if (a := getattr(at, n, None)) is not None), None
        )
    waiter = getattr(task, "_fut_waiter", None)
    awaited = [waiter, *getattr(waiter, "_children", ())]
    names = [t.get_name()[:80] for t in awaited if hasattr(t, "get_coro") and not t.done()]
    return {"name": task.get_name()[:80], "frames": places[::-1], "awaits": names}
