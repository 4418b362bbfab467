"""What a rank is doing, told from its stacks, its /proc state and the source: the difference between late and stuck."""

from __future__ import annotations

import re
from typing import NamedTuple

from unhang.analyze.source import line_text, surroundings
from unhang.model import Frame, RankEvidence, ThreadStack, user_frames
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
_WAITING_LINE = lazy_pattern(
    r"\.wait\(|\.synchronize\(|\.result\(|\.item\(|\.cpu\(|wait_tensor|barrier\(|\.get\(|\.recv\("
)
_LOADER = ("/torch/utils/data/dataloader.py", "/torch/utils/data/_utils/", "/torchdata/", "/webdataset/")
_LOCKS = {
    ("threading.py", "wait"): "event or condition",
    ("threading.py", "acquire"): "lock",
    ("threading.py", "join"): "thread that does not end",
    ("threading.py", "_wait_for_tstate_lock"): "thread that does not end",
    ("queue.py", "get"): "queue",
    ("queue.py", "put"): "queue",
    ("synchronize.py", "wait"): "event or condition",
    ("queues.py", "get"): "queue",
    ("subprocess.py", "wait"): "child process",
    ("subprocess.py", "communicate"): "child process",
    ("subprocess.py", "_communicate"): "child process",
    ("popen_fork.py", "poll"): "child process",
    ("popen_fork.py", "wait"): "child process",
    ("connection.py", "recv"): "pipe",
    ("socket.py", "readinto"): "socket",
    ("ssl.py", "read"): "socket",
}
_SHUTDOWN = {
    "_shutdown",
    "_exit_function",
    "destroy_process_group",
    "_run_exitfuncs",
    "_python_exit",
    "_clean_up_worker",
}
SPINNING_SHARE = 0.7


class Activity(NamedTuple):
    """What the main thread of a rank does.

    `kind`: communication, data, lock, frozen, spinning, gil, shutdown, dead, user, unknown. `detail` reads after "in".
    """

    kind: str
    detail: str = ""
    frame: Frame | None = None


def _name(frame: Frame) -> tuple[str, str]:
    return frame.file.rsplit("/", 1)[-1], frame.function


def in_communication(stack: ThreadStack) -> bool:
    """Whether a thread sits in a call that waits for other ranks."""
    for frame in stack.frames[:6]:
        if any(part in frame.file for part in _NOT_A_WAIT):
            return False
        if any(part in frame.file for part in _COMMUNICATION):
            return True
        if "/torch/" in f"/{frame.file}" and frame.function in _WAITS_INSIDE:
            return stack.is_active is not True
        if frame.is_user:
            text = line_text(frame.file, frame.line)
            return frame is stack.frames[0] and bool(_WAITING_LINE.search(text))
    return False


def _lock(stack: ThreadStack) -> str:
    for frame in stack.frames[:4]:
        if frame.is_user:
            text = line_text(frame.file, frame.line)
            if re.search(r"\.acquire\(|\bwith\b.*lock", text, re.IGNORECASE):
                return "lock"
            return "child process" if "waitpid" in text else ""
        if _name(frame) in _LOCKS:
            return _LOCKS[_name(frame)]
    return ""


def _fetches_data(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame that asks for the next batch, where the stack goes through a loader or a loop's iterator."""
    mine = user_frames(frames)
    if any(part in f.file for f in frames for part in _LOADER):
        return mine[0] if mine else None
    for outer in mine[1:]:
        if surroundings(outer.file, outer.line).fetches_next:
            return mine[0]
    return None


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


def activity_of(evidence: RankEvidence) -> Activity:
    """What a rank is doing at capture."""
    process = _process_kind(evidence)
    stack = evidence.main_stack
    mine = user_frames(stack.frames) if stack else ()
    frame = mine[0] if mine else None
    if process is not None:
        return Activity(process.kind, process.detail, frame)
    if stack is None:
        return Activity("unknown", "no stack could be taken")
    if any(f.function in _SHUTDOWN for f in stack.frames) or (evidence.exit and evidence.exit.kind == "exit"):
        return Activity("shutdown", "the end of the program", frame)
    if in_communication(stack):
        return Activity("communication", "a call that waits for other ranks", frame)
    return _user_kind(evidence, stack, frame)


def _user_kind(evidence: RankEvidence, stack: ThreadStack, frame: Frame | None) -> Activity:
    if _fetches_data(stack.frames) is not None:
        return Activity("data", "the data loader", frame)
    lock = _lock(stack)
    if lock:
        return Activity("lock", f"a wait for a {lock}", frame)
    share = evidence.state.cpu_share if evidence.state else None
    if share is not None and share >= SPINNING_SHARE:
        kind = "gil" if stack.owns_gil and (evidence.heartbeat_age_s or 0) > 1.0 else "spinning"
        return Activity(kind, f"Python or C code that uses {share:.0%} of a core", frame)
    return Activity("user", "its own code", frame)
