"""What the ranks of a log were doing, told by stacks that were pasted into it, and by the tracebacks of interrupted ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from unhang.analyze.lines.first_errors import errors_of, has_own_stacks
from unhang.model import Frame, LogLine, ThreadStack
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_COLLECTIVES = lazy_pattern(
    r"(?:all_reduce|all_gatherv?|broadcast|reduce_scatterv?)(?:_\w+)?|all_to_all(?:_single)?|gather(?:_object)?|(?:monitored_)?barrier|"
    r"reduce|scatter(?:_object_list)?|i?recv|i?send|batch_isend_irecv|wait_for_everyone"
)
_NATIVE = lazy_pattern(
    r"nccl(?:AllReduce|AllGather|Broadcast|ReduceScatter|Reduce|Send|Recv|GroupEnd)|ProcessGroup(?:NCCL|Gloo)::(\w+)"
)
_COMMUNICATES = lazy_pattern(
    r"distributed_c10d|torch/distributed/(?!elastic|checkpoint|run|launch)|deepspeed/comm|horovod|/device_communicators/|accelerate/(?:state|utils/operations)"
)
# What waits for all ranks below functions of Python that bear no name of a collective.
_LIBRARY_CALLS = (
    ("deepspeed/runtime/zero/", frozenset({"fetch_sub_module"}), "the gathering of parameters"),
    ("deepspeed/runtime/", frozenset({"_checkpoint_tag_validation"}), "the comparison of a checkpoint's tag"),
    ("deepspeed/runtime/zero/", frozenset({"average_tensor", "allreduce_bucket", "reduce_ipg_grads"}), "backward"),
    (
        "torch/nn/parallel/distributed.py",
        frozenset(
            {"_sync_buffers", "_sync_params", "_sync_params_and_buffers", "_sync_module_states"}
            | {"_default_broadcast_coalesced", "_distributed_broadcast_coalesced", "_dist_broadcast_coalesced"}
        ),
        "the broadcast of DDP's buffers",
    ),
)
_BACKWARD = frozenset({"_engine_run_backward", "run_backward"})
# Before torch 2.2 the innermost one of Python; what a hook calls stands above it.
_AUTOGRAD = ("torch/autograd/__init__.py", "torch/_tensor.py", "torch/tensor.py")
# The processor waits for what was given to the device, whatever that waits for.
_OF_DEVICE = frozenset({"synchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"})
_CUDA = lazy_pattern(r"torch/(?:cuda|xpu|npu|hpu|accelerator)/|torch_npu/")
_LOADER = lazy_pattern(
    r"torch/utils/data/|torchdata/|webdataset/|/data/iterators|data_?loader|litdata|streaming/base|ffcv/loader"
)
_FETCHES = frozenset(
    {"_try_get_data", "_get_data", "_next_data", "__next__", "_shutdown_workers", "_start_workers", "_get_iterator"}
)
_WAITS = frozenset({"wait", "get", "select", "poll", "_poll", "acquire", "recv", "recv_bytes", "_recv", "join", "_wait_for_tstate_lock",
                    "sleep", "communicate", "waitpid", "read", "flock", "result", "_try_wait", "put"})  # fmt: skip
_ENDING = frozenset(
    {"_shutdown", "_exit_function", "destroy_process_group", "_run_exitfuncs", "_python_exit", "exit_function"}
)
# The end of `asyncio.run`: it waits for tasks that do not let themselves be cancelled, and for threads.
_LOOP_END = frozenset({"_cancel_all_tasks", "shutdown_default_executor", "shutdown_asyncgens", "close"})
_NATIVE_END = frozenset({"__run_exit_handlers", "Py_FinalizeEx"})  # destructors run far above it
# A worker of Ray or vLLM whose program has returned.
_IDLE = lazy_pattern(r"ray/_private/worker\.py main_loop|vllm/\S+ worker_busy_loop")
# How it waits for one.
_TAKES_TASKS = lazy_pattern(
    r"shm_broadcast|message_queue|vllm/distributed/utils|\bzmq/|ray/_private/|_raylet|(?:^|/)(?:threading|queue|selectors)\.py|\.so\b|^$"
)
_THREADS = {
    "concurrent/futures/thread.py": "a thread of a pool",
    "/threading.py": "a thread of its own",
    "/asyncio/": "the loop of events",
}
_RAY_GET = frozenset({"get_objects", "get", "wait"})
# The others wait here until rank 0 has done what it does first.
RANK_ZERO_FIRST = lazy_pattern(
    r"zero_first|main_process_first|rank_?(?:0|zero)_first|master_first|rank_zero_barrier|_goes_first|local_main_process_first"
)
_DEPTH = 8
_PROCESS = re.compile(r"process (\d{1,9})")
# Interrupted, they were waiting for their ranks, whatever these did.
_LAUNCHERS = lazy_pattern(
    r"torch/distributed/(?:run|launch|elastic)|torch/multiprocessing/spawn|deepspeed/launcher|/bin/torchrun"
)


class Doing(NamedTuple):
    """What one rank, or several under one heading, did.

    `kind`: collective, device (it waits for its own device), loader, lock, ending, idle (a worker that waits for its next task), worker (a process
    of a rank's loader), user.
    `what`: the collective. `caller`: the first frame of the program itself.
    `beside`: that of another thread of the process, or of a library, which is in a collective as well.
    """

    label: str
    ranks: tuple[int, ...]
    kind: str
    what: str
    caller: Frame | None
    frames: tuple[Frame, ...]
    line: LogLine
    beside: Frame | None = None

    @property
    def who(self) -> str:
        """How it is named in a sentence."""
        return self.label or "the rank"


_known: WeakKeyDictionary[Situation, tuple[Doing, ...]] = WeakKeyDictionary()


def doings_of(s: Situation) -> tuple[Doing, ...]:
    """All stacks that processes or people wrote into logs and files, in their order; none where a watcher took stacks, or calls tell more."""
    if s.standing is not None:
        return ()  # what was looked at from outside has edges of its own
    stacks = [(rank, stack) for rank, e in s.case.ranks.items() if (stack := e.main_stack) and e.exit is None]
    is_known = len(s.case.calls) or s.case.hang is not None or s.case.job.exit_code is not None
    found = () if stacks and (is_known or has_own_stacks(s)) else _known.get(s)
    if found is None and not s.case.log and not stacks:
        return ()
    if found is None:
        from unhang.read.logs.pasted_stacks import of_the_wait, pasted_stacks  # most folders of dumps hold no log

        chosen = of_the_wait(pasted_stacks(s.case.log), s.case.log, s.events, s.is_hang)
        ranks = _ranks_in_order([(p.label, p.ranks) for p in chosen], s.case.job.world_size)
        pasted = [_doing(p.label, ranks.get(p.label, p.ranks), p.frames, p.line, p.is_call, p.others) for p in chosen]
        found = _known[s] = (*_printed_alone(s, stacks), *pasted, *_interrupted(s))
    return found


def _ranks_in_order(pasted: Sequence[tuple[str, tuple[int, ...]]], world: int | None) -> dict[str, tuple[int, ...]]:
    """The ranks of processes of which only the numbers are known, if these are all of the job: a launcher starts its ranks in order."""
    numbers = {label: int(match[1]) for label, ranks in pasted if not ranks and (match := _PROCESS.fullmatch(label))}
    if not 1 < len(numbers) == len(pasted) == world:
        return {}
    return {label: (rank,) for rank, label in enumerate(sorted(numbers, key=lambda name: numbers[name]))}


def _printed_alone(s: Situation, stacks: Sequence[tuple[int, ThreadStack]]) -> list[Doing]:
    """Of ranks whose stack is all that a file holds, and no log shows that the job moved and did not hang."""
    logs = {line.source.path for line in s.case.log} if stacks else set()
    if any(e.is_progress for e in s.events) and not s.is_hang:
        return []
    alone = ((rank, stack) for rank, stack in stacks if stack.source.path not in logs)
    return [_doing(f"rank {rank}", (rank,), stack.frames, LogLine("", stack.source)) for rank, stack in alone]


_GAVE_UP = ("NCCL communicator was aborted on rank", "caught collective operation timeout")


def _interrupted(s: Situation) -> Iterator[Doing]:
    """Of ranks that were interrupted, or whose wait torch's watchdog gave up, by their tracebacks."""
    for e in errors_of(s):
        is_shown = e.frames and e.order < len(s.case.log) and not any(_is_launcher(f) for f in e.frames)
        by_hand, given_up = e.error.type.endswith("KeyboardInterrupt"), any(x in e.error.message for x in _GAVE_UP)
        if is_shown and (by_hand or given_up):
            ranks = () if e.rank is None else (e.rank,)
            doing = _doing("".join(f"rank {r}" for r in ranks), ranks, e.frames, s.case.log[e.order])
            if by_hand or doing.kind == "collective":
                yield doing


def _is_launcher(f: Frame) -> bool:
    """Not so the function in which a process that was spawned begins."""
    return f.function != "_wrap" and _LAUNCHERS.search(f.file) is not None


def _doing(
    label: str,
    ranks: tuple[int, ...],
    frames: tuple[Frame, ...],
    line: LogLine,
    is_call: bool = False,
    others: Iterable[tuple[Frame, ...]] = (),
) -> Doing:
    kind, what = ("collective", frames[0].function) if is_call else _kind(frames)
    caller = next((f for f in frames if not _is_library(f)), None)
    return Doing(label, ranks, kind, what, caller, frames, line, _in_a_call(others))


def _in_a_call(threads: Iterable[tuple[Frame, ...]]) -> Frame | None:
    """The line at which one of some threads is in a collective: that of the program, else the library's own."""
    frames = next((t for t in threads if _kind(t)[0] == "collective"), ())
    return next((f for f in frames if not _is_library(f)), next(iter(frames), None))


def threads_apart(s: Situation, odd: Sequence[int], others: Sequence[int]) -> dict[str, str]:
    """In what the stacks of two sides begin, where these are a pool of threads and a loop of events: `mine`, `theirs`; else nothing."""
    begins: dict[bool, set[str]] = {True: set(), False: set()}
    for doing in doings_of(s):
        outer = {f.file for f in doing.frames[-_DEPTH:]}
        began = next((what for file, what in _THREADS.items() if any(file in f for f in outer)), "the main thread")
        for side, ranks in ((True, odd), (False, others)):
            if not set(ranks).isdisjoint(doing.ranks):
                begins[side].add(began)
    mine, theirs = begins[True], begins[False]
    is_apart = len(mine) == len(theirs) == 1 and mine != theirs
    return {"mine": next(iter(mine)), "theirs": next(iter(theirs))} if is_apart else {}


def is_ray_driver(frames: Sequence[Frame]) -> bool:
    """Whether it waits for what workers of Ray were asked for."""
    return any(f.function in _RAY_GET and f.file.endswith("ray/_private/worker.py") for f in frames[:_DEPTH])


def _kind(frames: Sequence[Frame]) -> tuple[str, str]:
    top = frames[:_DEPTH]
    names = [f.function.split(" ")[0] for f in top]
    if not (_ENDING | _NATIVE_END).isdisjoint(names) or any(f.function in _NATIVE_END for f in frames):
        return "ending", ""
    if any(f.function in _LOOP_END and f.file.endswith("asyncio/runners.py") for f in top):
        return "ending", ""
    if any(f.function == "_worker_loop" and f.file.endswith("torch/utils/data/_utils/worker.py") for f in frames):
        return "worker", ""
    goes_through_loader = any(_LOADER.search(f.file) and f.function in _FETCHES for f in frames[:14])
    if goes_through_loader and not (_WAITS | _FETCHES).isdisjoint(names[:6]):
        return "loader", ""
    if names[:1] == ["backward"] and top[0].file.endswith(_AUTOGRAD):
        return "collective", "backward"
    for f, name in zip(top, names, strict=True):
        if _COLLECTIVES.fullmatch(name) and (_COMMUNICATES.search(f.file) or not f.file):
            return "collective", name
        if native := _NATIVE.search(f.function):
            return "collective", native[1] or native[0]
        if name in _BACKWARD:
            return "collective", "backward"
        for part, functions, what in _LIBRARY_CALLS:
            if name in functions and part in f.file:
                return "collective", what
    if names[:1] and names[0] in _OF_DEVICE and (_CUDA.search(top[0].file) or not top[0].file):
        return "device", names[0]
    at = next((i for i, f in enumerate(top) if _IDLE.search(f"{f.file} {f.function}")), None)
    if at is not None and all(_TAKES_TASKS.search(f.file) for f in top[:at]):
        return "idle", ""
    return ("lock" if names[:1] and set(names[:3]) & _WAITS else "user"), ""


def _is_library(frame: Frame) -> bool:
    file = frame.file
    parts = ("site-packages/", "dist-packages/", "/lib/python", "<frozen")
    if not file or any(p in file for p in parts) or file.endswith((".so", ".c", ".cpp", ".S")) or ".so." in file:
        return True
    return file.startswith(
        ("torch/", "threading.py", "queue.py", "multiprocessing/", "contextlib.py", "selectors.py", "concurrent/")
    )


_ROW = lazy_pattern(r"^ *\d{1,2} +(\d+\.\d\d(?: +\d+\.\d\d)+) *$")
_MOST_DEVICES, _NEVER_US = 16, 1000.0  # a copy to a neighbour takes microseconds, over a busy bus some tens


def lost_copies(s: Situation) -> tuple[LogLine, ...]:
    """The table of a test of copies from device to device in which more than half of those to another one never arrived."""
    for head in s.events.of("kernel.p2p_latency"):
        lines = s.case.log[head.order : head.order + _MOST_DEVICES + 2]
        rows = [[float(x) for x in m[1].split()] for line in lines if (m := _ROW.search(line.text))]
        between = [x for i, row in enumerate(rows) for j, x in enumerate(row) if i != j]
        if 2 * sum(x > _NEVER_US for x in between) > len(between):
            return tuple(lines[:4])
    return ()
