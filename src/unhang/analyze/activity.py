"""What a rank is doing, told from its stacks, its /proc state and the source; and which of its threads its peers wait for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import calls_on, last_name, line_text
from unhang.analyze.waits.polling import asks_database, polled_by_test, polled_for
from unhang.model import Frame, RankEvidence, ThreadStack, user_frames
from unhang.model.frames import WaitingTask
from unhang.model.lazy_pattern import lazy_pattern

_COMMUNICATION = ("torch/distributed/", "torch/_C/_distributed", "/ray/util/collective", "/deepspeed/comm")
# Functions of torch in which C++ code issues collectives and waits for them: DDP's buckets and buffers.
_WAITS_INSIDE = (
    "_engine_run_backward",
    "wait_tensor",
    "_distributed_broadcast_coalesced",
    "_broadcast_coalesced",
    "_ddp_init_helper",
    "_sync_module_states",
    "_verify_param_shape_across_processes",
    "_pre_forward",
)
_NOT_A_WAIT = ("/torch/distributed/optim/", "/torch/distributed/checkpoint/", "/torch/distributed/elastic/")
# Functions of C without a frame of their own that wait for a call which the rank has open: for its end, or for the device.
_WAITS_IN_C = lazy_pattern(
    r"\.wait\(|\.synchronize\(|\.item\(|\.cpu\(|wait_tensor|\.tolist\(|\.numpy\(|\bfloat\(|\bint\(|\bbool\("
)
_SYNCHRONIZES = ("/torch/cuda/", "/torch/accelerator/")
_LOADER = ("/torch/utils/data/dataloader.py", "/torch/utils/data/_utils/", "/torchdata/", "/webdataset/")
_OF_A_SLEEP = "the end of a sleep"
_CONNECTION = "a free connection of its pool"
_WITHIN = {
    ("threading.py", "wait"): "an event or condition",
    ("threading.py", "acquire"): "a lock",
    ("threading.py", "join"): "a thread that does not end",
    ("threading.py", "_wait_for_tstate_lock"): "a thread that does not end",
    ("_base.py", "result"): "the result of another thread",
    ("_base.py", "exception"): "the result of another thread",
    ("_base.py", "wait"): "the results of other threads",
    ("thread.py", "shutdown"): "a thread that does not end",
    ("queue.py", "get"): "a queue",
    ("queue.py", "put"): "a full queue",
    ("queue.py", "join"): "a queue to be emptied",
    ("locks.py", "wait"): "an event or condition",
    ("locks.py", "acquire"): "a lock",
    ("locks.py", "acquire_any"): "a lock",
    ("queues.py", "get"): "a queue",
    ("queues.py", "put"): "a full queue",
    ("queues.py", "join"): "a queue to be emptied",
    ("connectionpool.py", "_get_conn"): _CONNECTION,
    ("connection_pool.py", "wait_for_connection"): _CONNECTION,
    ("impl.py", "_do_get"): _CONNECTION,
    ("pool.py", "getconn"): _CONNECTION,
    ("tasks.py", "sleep"): _OF_A_SLEEP,
    ("streams.py", "_wait_for_data"): "a socket",
    ("streams.py", "_drain_helper"): "room in a socket",
    ("_bootstrap", "acquire"): "the lock of an import",
    ("synchronize.py", "wait"): "an event or condition",
    ("synchronize.py", "acquire"): "a lock of several processes",
}
TASK_OF_RAY, RESULT_OF_RAY = "a task of Ray", "a result of Ray"
OF_RAY = "ray::"  # what the titles of Ray's workers begin with, and the names of their stacks
PAUSE = "the end of a pause that a server asked for"
DATABASE = "the lock of a database"
_OUTSIDE = {
    ("process.py", "join"): "a child process",
    ("subprocess.py", "wait"): "a child process",
    ("subprocess.py", "communicate"): "a child process",
    ("subprocess.py", "_communicate"): "a child process",
    ("popen_fork.py", "poll"): "a child process",
    ("popen_fork.py", "wait"): "a child process",
    ("file_baton.py", "wait"): "a lock file",
    ("_api.py", "acquire"): "a lock file",
    ("_acquire.py", "_poll_until_acquired"): "a lock file",
    ("utils.py", "acquire"): "a lock file",
    ("pdb.py", "interaction"): "a command for its debugger",
    ("connection.py", "recv"): "a pipe",
    ("socket.py", "readinto"): "a socket",
    ("ssl.py", "read"): "a socket",
    ("__init__.py", "synchronize"): "its device",
    ("worker.py", "main_loop"): TASK_OF_RAY,
    ("worker.py", "get_objects"): RESULT_OF_RAY,
    ("retry.py", "sleep_for_retry"): PAUSE,
}
_NAMED = {**_WITHIN, **_OUTSIDE}
_DIRECTORIES = {
    "_base.py": "concurrent/futures/",
    "thread.py": "concurrent/futures/",
    "tasks.py": "asyncio/",
    "process.py": "multiprocessing/",
    "__init__.py": "torch/cuda/",
    "worker.py": "ray/_private/",
    "retry.py": "urllib3/",
    "connectionpool.py": "urllib3/",
    "connection_pool.py": "httpcore",
    "impl.py": "sqlalchemy/",
    "pool.py": "psycopg_pool/",
    "_api.py": "filelock/",
    "_acquire.py": "filelock/",
    "utils.py": "portalocker/",
}
_POOLS_OF_TASKS = (
    ("aiohttp/connector.py", ("_wait_for_available_connection",)),
    ("/_async/connection_pool.py", ("wait_for_connection",)),
)
_ASYNCIO = "/asyncio/base_events.py"
_OF_A_FILE = ("read", "recvfrom", "recvmsg", "poll")
_TO_A_FILE = ("write", "sendto", "sendmsg")
_MOST_LIBRARY_FRAMES = 20
_SHUTDOWN = {
    "_shutdown",
    "_exit_function",
    "destroy_process_group",
    "_run_exitfuncs",
    "_python_exit",
    "_clean_up_worker",
}
_TAKES_A_LOCK = lazy_pattern(r"\.acquire\(|\bwith\b.*lock", re.IGNORECASE)
SPINNING_SHARE, POLLING_SHARE = 0.7, 0.3


class Activity(NamedTuple):
    """What a rank does, in its main thread or in the one that makes the calls in question.

    `kind`: communication, data, lock, outside, frozen, spinning, gil, device, shutdown, dead, user, unknown. `lock` is a wait within
    the process, `outside` one for a file, a socket or another process, `device` one for work of the rank's own on its device.
    `detail` reads after "in", `awaits` after "waits for".
    """

    kind: str
    detail: str = ""
    frame: Frame | None = None
    awaits: str = ""

    @property
    def is_polled(self) -> bool:
        """Whether it waits in a loop that sleeps and looks again."""
        return self.kind == "outside" and self.awaits.startswith("`")


def _name(frame: Frame) -> tuple[str, str]:
    return frame.file.rsplit("/", 1)[-1].strip("<>").removeprefix("frozen importlib."), frame.function


def in_communication(stack: ThreadStack, is_open: bool = True) -> bool:
    """Whether a thread sits in a call that waits for other ranks. `is_open`: the rank may have issued one that is not done."""
    for frame in stack.frames[:6]:
        if any(part in frame.file for part in _NOT_A_WAIT):
            return False
        if any(part in frame.file for part in _COMMUNICATION):
            return True
        if "/torch/" in f"/{frame.file}" and frame.function in _WAITS_INSIDE:
            return stack.is_active is not True
        if frame.function == "synchronize" and any(part in frame.file for part in _SYNCHRONIZES):
            return is_open
        if frame.is_user:
            return is_open and frame is stack.frames[0] and _may_wait_in_c(stack)
    return False


def wait_in_c(frame: Frame) -> str:
    """What a line calls that waits in C without a frame of its own: `item()`; empty where it calls nothing of that kind."""
    found = _WAITS_IN_C.search(line_text(frame.file, frame.line))
    return f"{found[0].strip('.(')}()" if found else ""


def _may_wait_in_c(stack: ThreadStack) -> bool:
    """Whether the line may stand in a wait of torch's C++ code; a wait of the kernel for something else excludes it."""
    frame = stack.frames[0]
    return not _in_kernel(stack) and bool(_WAITS_IN_C.search(line_text(frame.file, frame.line)))


def _in_kernel(stack: ThreadStack) -> str:
    """What the thread waits for in the kernel, where that is outside of the process; empty if it is not."""
    wait = stack.kernel
    if wait is None:
        return ""
    kind, _, path = wait.file.partition(" ")
    name = path.rsplit("/", 1)[-1]
    what = {
        "socket": "a socket",
        "pipe": "a pipe",
        "terminal": "the terminal",
        "FIFO": f"the FIFO {name}".strip(),
        "file": f"the file {name}",
    }
    if wait.call in ("wait4", "waitid"):
        return "a child process"
    if wait.call == "flock" or (wait.call == "fcntl" and path):
        return f"the lock on the file {name}" if name else "the lock on a file"
    if wait.call == "open" and kind == "FIFO":
        return "the other end of a FIFO"
    if wait.call in ("accept", "connect"):
        return "a connection"
    if wait.call in _OF_A_FILE:
        return what.get(kind, "")
    return f"room in {what[kind]}" if wait.call in _TO_A_FILE and kind in ("socket", "pipe", "FIFO") else ""


def _named_wait(stack: ThreadStack) -> tuple[str, str]:
    """(kind, what is awaited): the outermost wait of the standard library above the user's frame, else what the kernel says."""
    found = "", ""
    for frame in stack.frames[:_MOST_LIBRARY_FRAMES]:
        if frame.is_user:
            break
        name = _name(frame)
        if name in _NAMED and _DIRECTORIES.get(name[0], "") in frame.file:
            found = ("lock" if name in _WITHIN else "outside"), _NAMED[name]
    outside = _in_kernel(stack)
    if found[1]:
        return found
    if outside:
        return "outside", outside
    top = stack.frames[0] if stack.frames else None
    if top is not None and top.is_user and _TAKES_A_LOCK.search(line_text(top.file, top.line)) and _is_asleep(stack):
        return "lock", "a lock"
    if top is not None and top.is_user and _sleeps(stack) and asks_database(top.file, top.line):
        return "outside", DATABASE
    return "", ""


def awaited_in(stack: ThreadStack) -> str:
    """What a thread waits for by the names of a library's functions, or by the kernel; empty where these do not tell."""
    return _named_wait(stack)[1]


def _is_asleep(stack: ThreadStack) -> bool:
    """Whether the thread may wait for a lock: the kernel, where it is asked, says so."""
    return stack.is_active is not True and (stack.kernel is None or stack.kernel.call == "futex")


def _sleeps(stack: ThreadStack) -> bool:
    """Whether the thread may be in a sleep of C code."""
    return stack.is_active is not True and (stack.kernel is None or "sleep" in stack.kernel.call)


def goes_through_loader(frames: tuple[Frame, ...]) -> bool:
    """Whether a stack goes through a library's data loader."""
    return any(part in f.file for f in frames for part in _LOADER)


def is_loader_worker(stack: ThreadStack) -> bool:
    """Whether a thread is that of a worker process of a data loader, and not of another process that the program started."""
    return any(f.function == "_worker_loop" or "/torchdata/" in f.file for f in stack.frames)


def imports_anew(frames: Iterable[Frame]) -> bool:
    """Whether a process that was started by spawn imports the script of its parent: it runs what that does on its outermost level."""
    return any(f.function.startswith("_fixup_main_from_") for f in frames)


def _fetches_data(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame that asks for the next batch, where the stack goes through a loader or a loop's iterator."""
    mine = user_frames(frames)
    return mine[0] if mine and (goes_through_loader(frames) or loops_over_generator(frames)) else None


def loops_over_generator(frames: tuple[Frame, ...]) -> list[Frame]:
    """The user's heads of loops that ask a function of the program for the next thing, innermost first."""
    return [f for f in user_frames(frames)[1:] if surroundings(f.file, f.line).fetches_next]


def _process_kind(evidence: RankEvidence) -> Activity | None:
    state = evidence.state.state if evidence.state else ""
    if state in ("T", "t"):
        return Activity("frozen", "a stopped process (state T)")
    if state == "D" and (evidence.state and (evidence.state.cpu_share or 0) < 0.01):
        return Activity("frozen", f"an uninterruptible system call ({evidence.state.wchan or 'state D'})")
    asked_to_end = evidence.exit is not None and evidence.exit.code in (-1, -2, -15) and evidence.main_stack is not None
    if not asked_to_end and (state in ("gone", "Z", "X") or (evidence.exit and evidence.exit.kind != "exit")):
        return Activity("dead", evidence.exit.kind if evidence.exit else "gone")
    return None


def activity_of(evidence: RankEvidence, is_open: bool = True, thread: ThreadStack | None = None) -> Activity:
    """What a rank is doing at capture. `is_open`: it may have issued a call that is not done. `thread`: instead of the main one."""
    process = _process_kind(evidence)
    stack = thread or evidence.main_stack
    mine = (user_frames(stack.frames) or stack.given) if stack else ()
    frame = mine[0] if mine else None
    if process is not None:
        return Activity(process.kind, process.detail, frame)
    if stack is None:
        return Activity("unknown", "no stack could be taken")
    if any(f.function in _SHUTDOWN for f in stack.frames) or (evidence.exit and evidence.exit.kind == "exit"):
        return Activity("shutdown", "the end of the program", frame)
    if in_communication(stack, is_open):
        return Activity("communication", "a call that waits for other ranks", frame)
    return _user_kind(evidence, stack, frame)


def _user_kind(evidence: RankEvidence, stack: ThreadStack, frame: Frame | None) -> Activity:
    above = stack.frames[: stack.frames.index(frame)] if frame in stack.frames else stack.frames
    # Code of the program's own, a generator or a data set in this process, says itself what it waits for.
    kind, awaits = ("", "") if goes_through_loader(above) else _named_wait(stack)
    if kind:
        return Activity(kind, f"a wait for {awaits}", frame, awaits)
    if awaits := _polled(stack, frame, evidence):
        return Activity("outside", f"a wait for {awaits}", frame, awaits)
    if _fetches_data(stack.frames) is not None:
        return Activity("data", "the data loader", frame)
    return own_code(evidence, stack, frame)


def own_code(evidence: RankEvidence, stack: ThreadStack, frame: Frame | None) -> Activity:
    """What a thread does that waits for nothing: tasks, work in Python or C, its own lines."""
    if _ASYNCIO in next((f.file for f in stack.frames if f.is_user or _ASYNCIO in f.file), ""):
        return _of_tasks(evidence.tasks, frame)
    share = evidence.state.cpu_share if evidence.state else None
    if share is not None and share >= SPINNING_SHARE:
        kind = "gil" if stack.owns_gil and (evidence.heartbeat_age_s or 0) > 1.0 else "spinning"
        return Activity(kind, f"Python or C code that uses {share:.0%} of a core", frame)
    return Activity("user", "its own code", frame)


def _polled(stack: ThreadStack, frame: Frame | None, evidence: RankEvidence) -> str:
    """What a loop waits for that sleeps and looks again, where the thread is in that sleep, or looks."""
    share = evidence.state.cpu_share if evidence.state else None
    if frame is None or (stack.is_active is True and (share is None or share > POLLING_SHARE)):
        return ""
    found = polled_for(frame.file, frame.line) if stack.frames[0] == frame else ""
    return found or next((t for f in user_frames(stack.frames)[:3] if (t := polled_by_test(f.file, f.line))), "")


def _of_tasks(tasks: Sequence[WaitingTask], frame: Frame | None) -> Activity:
    """An event loop in which nothing runs: the place is that of the tasks that await no other one of the program's, if they are at one line.

    One that sleeps goes on by itself, and counts only where there is no other.
    """
    own = {t.name: t for t in tasks if user_frames(t.frames)}
    last = {n: (_awaited_by(t), user_frames(t.frames)[0]) for n, t in own.items() if own.keys().isdisjoint(t.awaits)}
    asleep = {name for name, (awaits, _) in last.items() if awaits == _OF_A_SLEEP}
    places = {place for name, place in last.items() if name not in asleep} or set(last.values())
    if len(places) > 1 and frame is not None:
        begun = {last_name(c.func) for c in calls_on(frame.file, frame.line)}
        firsts = {last[t.name] for t in tasks if t.name in last and user_frames(t.frames)[-1].function in begun}
        places = firsts if len(firsts) == 1 else places  # the one whose end the thread waits for
    if len(places) != 1:
        return Activity("lock", "a wait for its tasks", frame, "its tasks")
    awaits, at = places.pop()
    names = [name for name, place in last.items() if place == (awaits, at)]
    who = f"the task {names[0]}" if len(names) == 1 else f"{len(names)} tasks"
    return Activity("lock", f"a wait for {awaits} in {who}", at, awaits)


def _awaited_by(task: WaitingTask) -> str:
    """What a task waits for, by the function of asyncio, or of a pool of connections, in which it stands."""
    if any(f.function in functions and file in f.file for f in task.frames for file, functions in _POOLS_OF_TASKS):
        return _CONNECTION
    if any(f.file.endswith("asyncio/subprocess.py") and f.function == "communicate" for f in task.frames):
        return "the output of a child process"
    return next((_WITHIN[_name(f)] for f in task.frames if _name(f) in _WITHIN and "/asyncio/" in f.file), "something")


def is_blocked(evidence: RankEvidence | None) -> bool:
    """Whether a thread of the rank waits for other ranks; a rank without a stack is taken at its calls' word."""
    if evidence is None or not evidence.stacks:
        return True
    return any(in_communication(stack) for stack in evidence.stacks)
