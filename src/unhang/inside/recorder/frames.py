"""The user's own frames: those that are not torch's, a library's, the standard library's, or ours; what their threads and tasks wait for."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from traceback import walk_tb
from types import AsyncGeneratorType, CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from . import recording
from .recording import Recording, attempt, do_not_trace, preceded, write_whole

Place = tuple[str, int, str]
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple(
    {os.path.dirname(os.path.abspath(os.__file__)) + os.sep, os.path.dirname(os.path.realpath(os.__file__)) + os.sep}
)
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_TEXT_BYTES = 192
_MOST_DETAIL = 72
_MOST_CACHED = 4096
_MOST_FRAMES = 6
_SAME_FOLDER = "\x1e"
# A frame costs about 60 ns; nobody looks for the caller of a send below a hundred frames of libraries.
_DEEPEST = 100
_is_user_file: dict[str, bool] = {}
# Both keep the code objects alive whose ids are in their keys, so that an id never comes to mean another one.
_codes: dict[int, tuple[CodeType, bool]] = {}
_texts: dict[tuple[str | int, ...], tuple[bytes, list[CodeType]]] = {}


def is_user(file: str) -> bool:
    """Whether code of this file is the user's."""
    known = _is_user_file.get(file)
    if known is None:
        foreign = file.startswith(("<", _OWN, *_STDLIB)) or any(mark in file for mark in _LIBRARIES)
        known = _is_user_file[file] = not foreign and ("/" in file or file.endswith(".py"))
    return known


def user_places(limit: int = _MOST_FRAMES) -> tuple[Place, ...]:
    """The user's frames of the calling thread, innermost first."""
    found: list[Place] = []
    at: FrameType | None = sys._getframe(1)
    known, depth = _is_user_file, _DEEPEST
    while at is not None and depth:
        code = at.f_code
        file = code.co_filename
        if known[file] if file in known else is_user(file):
            found.append((file, at.f_lineno, code.co_name))
            if len(found) == limit:
                break
        at = at.f_back
        depth -= 1
    return tuple(found)


def chain(frame: FrameType | None, most: int) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None and most:
        yield frame
        frame, most = frame.f_back, most - 1


def caller_of_torch() -> Place | None:
    """Who called torch, the user or a library: the innermost frame that is neither torch's nor ours nor an import's."""
    for at in chain(sys._getframe(1), _DEEPEST):
        file = at.f_code.co_filename
        if not file.startswith(("<", _OWN)) and "/torch/" not in file:
            return file, at.f_lineno, at.f_code.co_name
    return None


def record_text(group: str, detail: str) -> bytes:
    """The text of a ring record for a call that the user makes now: `encode` with a memory of where calls come from.

    Called for each send and receive. The place in the code (`f_lasti`) is free, a line number costs 300 ns.
    """
    at: FrameType | None = sys._getframe(1)
    key: list[str | int] = [group, detail]
    frames: list[FrameType] = []
    codes, depth = _codes, _DEEPEST
    while at is not None and depth:
        code = at.f_code
        known = codes.get(id(code)) or _learn(code)
        if known[1]:
            key += (id(code), at.f_lasti)
            frames.append(at)
            if len(frames) == _MOST_FRAMES:
                break
        at = at.f_back
        depth -= 1
    text = _texts.get(tuple(key))
    if text is None:
        if len(_texts) >= _MOST_CACHED:
            _texts.clear()
        places = tuple((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames)
        text = _texts[tuple(key)] = (encode(group, detail, places), [f.f_code for f in frames])
    return text[0]


def _learn(code: CodeType) -> tuple[CodeType, bool]:
    if len(_codes) >= _MOST_CACHED:
        _codes.clear()
    known = _codes[id(code)] = (code, is_user(code.co_filename))
    return known


def traceback_places(trace: TracebackType | None) -> list[list[object]]:
    """The frames of a traceback, innermost first; at most 64."""
    found: list[list[object]] = [
        [frame.f_code.co_filename, line, frame.f_code.co_name] for frame, line in walk_tb(trace)
    ]
    return found[::-1][:64]


def encode(group: str, detail: str, places: tuple[Place, ...]) -> bytes:
    """The text of a ring record, at most 192 bytes. Whole frames only: half a line number would be a wrong one.

    A frame in the file of the one before has no name of a file; in its folder, only the file's own name, behind a mark.
    """
    head = f"{group[:48]}\x1f{_shorten(detail, _MOST_DETAIL)}\x1f".encode("utf-8", "replace")
    room = _TEXT_BYTES - len(head)
    frames: list[bytes] = []
    before = ""
    for file, line, function in places:
        folder, slash, name = file.rpartition("/")
        shared = slash and before.rpartition("/")[0] == folder
        short = "" if file == before else f"{_SAME_FOLDER}{name}" if shared else file
        frame = f"{short}:{line}:{function}".encode("utf-8", "replace")
        before = file
        if not frames and len(frame) > room:
            # The end of a path says more than its beginning.
            frame = frame[-room:].decode("utf-8", "ignore").encode()
        if len(frame) > room:
            break
        frames.append(frame)
        room -= len(frame) + 1
    return (head + b"|".join(frames))[:_TEXT_BYTES]


def _shorten(text: str, size_bytes: int) -> str:
    return (
        text.encode("utf-8", "replace")[:size_bytes].decode("utf-8", "ignore").replace("\x1f", " ").replace("\0", " ")
    )


# What threads and tasks wait for within this process: written when the agent asks, by the recorder's own thread.

_MOST_THREADS, _MOST_TASKS, _MOST_CALLERS, _MOST_LOCALS = 64, 64, 24, 64
_DEEPEST_START, _MOST_GIVEN = 200, 4096
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
    for f in chain(frame, _DEEPEST_START):
        if f.f_code.co_filename.endswith("concurrent/futures/thread.py"):
            work = f.f_locals.get("self") if f.f_code.co_name == "run" else None  # an idle worker has none
            future = getattr(work, "future", None)
            return _given.get(future, ()) if future is not None else ()
        if f.f_code.co_name == "_bootstrap" and f.f_code.co_filename.endswith("threading.py"):
            places = _given.get(f.f_locals.get("self"), ())
    return places


def write_waits_within(rec: Recording, kept: list[dict[str, Any]]) -> None:
    """Write waits.json: what each thread waits for and which threads can end that, tasks of asyncio, the signal handler, and the exceptions `kept`."""
    frames = dict(list(sys._current_frames().items())[:_MOST_THREADS])
    frames.pop(threading.get_ident(), None)
    main = frames.get(rec.main_thread_id)
    found = {
        "waits": [w for ident in frames if (w := attempt("waits.json", _wait_of, ident, frames)) is not None],
        "given": [{"thread": i, "frames": g} for i, f in frames.items() if (g := attempt("waits.json", _given_at, f))],
        "tasks": attempt("waits.json", _tasks, frames) or [],
        "in_handler": attempt("waits.json", _signal_handled, main) or "",
        "kept": kept,
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
            name_of_it = awaited.name[:80] if isinstance(awaited, threading.Thread) else ""
            found = {"thread": ident, "kind": kind, "by": by(awaited, ident, frames), "name": name_of_it}
    return found


def _thread_itself(awaited: Any, ident: int, frames: Frames) -> list[int]:
    number = awaited.ident if isinstance(awaited, threading.Thread) else None
    return [number] if number is not None and number in frames else []


def _worker_of(awaited: Any, ident: int, frames: Frames) -> list[int]:
    """The thread that runs the work of which this is the result."""
    return [i for i, frame in frames.items() if i != ident and _works_on(frame, awaited)]


def _works_on(frame: FrameType, awaited: Any) -> bool:
    for f in chain(frame, _MOST_CALLERS):
        code = f.f_code
        if code.co_name == "run" and code.co_filename.endswith("concurrent/futures/thread.py"):
            return getattr(f.f_locals.get("self"), "future", None) is awaited
    return False


def _who_knows(awaited: Any, ident: int, frames: Frames) -> list[int]:
    """Other threads that have the object in a variable, in what they call by name, or in an attribute of their `self`."""
    return [
        i for i, frame in frames.items() if i != ident and any(_knows(f, awaited) for f in chain(frame, _MOST_CALLERS))
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
    for f in chain(frame, _DEEPEST_START):
        if f.f_code.co_name == "run_forever" and f.f_code.co_filename.endswith("asyncio/base_events.py"):
            return f.f_locals.get("self")
    return None


_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_STEPS = (
    "async_generator_asend",
    "async_generator_athrow",
)  # of `async for`: they have no attribute for their generator


def _describe(task: Any) -> dict[str, Any]:
    places: list[list[object]] = []
    at = task.get_coro()
    while at is not None and len(places) < _MOST_CALLERS:
        frame = next((f for n in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(at, n, None))), None)
        if frame is not None:
            places.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        at = next((a for n in _AWAITED if (a := getattr(at, n, None)) is not None), None)
        if type(at).__name__ in _STEPS:
            at = next((g for g in gc.get_referents(at) if isinstance(g, AsyncGeneratorType)), None)
    waiter = getattr(task, "_fut_waiter", None)
    awaited = [waiter, *getattr(waiter, "_children", ())]
    names = [t.get_name()[:80] for t in awaited if hasattr(t, "get_coro") and not t.done()]
    return {"name": task.get_name()[:80], "frames": places[::-1], "awaits": names}
