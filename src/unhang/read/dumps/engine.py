"""Runs `partial(files) -> Shard` over all dumps, in processes that may fall, and makes one Shard of their answers.

A worker is forked, because it then starts in a millisecond or two with all modules loaded, and may run any function. It
works under limits of memory and time, and leaves when we are gone: at the end of the file that it has in hand, or when
the time limit of that shard is over.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import select
import signal
import socket
import struct
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, Protocol

from unhang.errors import UnhangError
from unhang.model import Frame, ProcessGroup, Unavailable
from unhang.read import restricted_pickle
from unhang.read.dumps import DumpFile, RankDump, Shard, merge

# Of a shard: numpy's cost per call is shared by its files, its memory grows with them.
MOST_FILES, FEWEST_FILES = 64, 16
MOST_BYTES = 64 << 20
MOST_PROCESSES = 32

Progress = Callable[[int, int], None]
Task = Callable[[Sequence[DumpFile]], Shard]

GRACE_S = 1.0  # a worker's own alarm comes first; we end the one that is stopped
BUFFER_BYTES = 1 << 20
_COUNT = struct.Struct("<q")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 32 << 20  # the most that glibc takes for the second


class Engine(Protocol):
    """Runs a task over files, somewhere."""

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = MOST_FILES
    ) -> Iterator[Shard]:
        """The shards, in any order; together they account for every file.

        `progress`: files done, and of how many. `most_files`: in one shard.
        """


def run_all(
    engine: Engine,
    task: Task,
    files: Sequence[DumpFile],
    progress: Progress | None = None,
    most_files: int = MOST_FILES,
) -> Shard:
    """All files as one Shard. The order in which the engine answers changes nothing."""
    known: dict[ProcessGroup, ProcessGroup] = {}
    return merge_ordered([_sharing(shard, known) for shard in engine.run(task, files, progress, most_files)])


def merge_ordered(shards: Sequence[Shard]) -> Shard:
    """The shards as one, the same whatever their order is but for the order of `parts`."""
    return merge(sorted(shards, key=_place))


def _place(shard: Shard) -> tuple[int, list[tuple[str, str]]]:
    first = min(shard.dumps, default=1 << 62)
    return first, [(a.what, a.reason) for a in shard.absent]


def _sharing(shard: Shard, known: dict[ProcessGroup, ProcessGroup]) -> Shard:
    """The shard with the known objects for equal groups: each shard of a large job brings all ranks of the world."""
    groups = tuple(known.setdefault(group, group) for group in shard.table.groups)
    return replace(shard, table=replace(shard.table, groups=groups))


def plan(files: Sequence[DumpFile], processes: int, most_files: int = MOST_FILES) -> list[tuple[DumpFile, ...]]:
    """The files as shards of bounded size, several for each process, by rank. Files of one rank stay together."""
    share = -(-len(files) // processes) if files else 1
    most = min(most_files, max(-(-share // (4 if most_files <= MOST_FILES else 1)), min(FEWEST_FILES, share)))
    shards: list[tuple[DumpFile, ...]] = []
    part: list[DumpFile] = []
    size = 0
    for file in sorted(files, key=lambda f: (f.rank, f.path, f.member)):
        is_full = len(part) >= most or (size + file.size > MOST_BYTES and most_files <= MOST_FILES)
        if part and is_full and part[-1].rank != file.rank:
            shards.append(tuple(part))
            part, size = [], 0
        part.append(file)
        size += file.size
    return [*shards, tuple(part)] if part else shards


def unreadable_shard(file: DumpFile, reason: str) -> Shard:
    """What a dump gives that cannot be decoded."""
    return Shard(absent=(Unavailable(f"dump of rank {file.rank}", reason),))


class _Try(NamedTuple):
    """Files to decode; `again`: the file has cost a process already, or shared one that fell."""

    files: tuple[DumpFile, ...]
    again: bool = False


class LocalEngine:
    """Worker processes of this machine, each under a limit of memory and time.

    A worker that falls or exceeds a limit is ended, and its files are tried again one by one; what falls twice is
    reported by name. Blocks while it runs.

    Args:
        processes: how many; by default one per usable CPU.
        memory_bytes: what a worker may allocate, besides 64 bytes per byte of its files.
        timeout_s: for one shard; the same again for each file alone after a fall.
    """

    def __init__(self, processes: int | None = None, memory_bytes: int = 1 << 30, timeout_s: float = 20.0) -> None:
        self._processes = processes or min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        self._memory_bytes, self._timeout_s = memory_bytes, timeout_s

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = MOST_FILES
    ) -> Iterator[Shard]:
        """The shards as they are done.

        Raises:
            UnhangError: no process can be started.
        """
        todo = deque(_Try(shard) for shard in plan(files, self._processes, most_files))
        idle: list[Worker] = []
        busy: dict[Worker, _Try] = {}
        done = 0
        try:
            while todo or busy:
                self._hand_out(task, todo, idle, busy)
                for worker in wait(list(busy)):
                    tried = busy.pop(worker)
                    answer = worker.answer()
                    (idle if worker.alive else []).append(worker)
                    if isinstance(answer, Fell):
                        if not tried.again or len(tried.files) > 1:
                            todo.extend(_Try((file,), again=True) for file in tried.files)
                            continue
                        answer = unreadable_shard(tried.files[0], answer.reason)
                    done += len(tried.files)
                    if progress is not None:
                        progress(done, len(files))
                    yield answer
        finally:
            for worker in (*idle, *busy):
                worker.end()

    def _hand_out(self, task: Task, todo: deque[_Try], idle: list[Worker], busy: dict[Worker, _Try]) -> None:
        while todo and len(busy) < self._processes:
            if not idle:
                try:
                    idle.append(Worker(task, self._memory_bytes, self._timeout_s, tuple(busy)))
                except OSError as error:
                    if busy:
                        return
                    raise UnhangError(f"no process can be started to decode the dumps ({error.strerror})") from error
            tried, worker = todo.popleft(), idle.pop()
            busy[worker] = tried
            worker.ask(tried.files)


def _reducer(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    values = attrgetter(*(field.name for field in fields(kind)))
    return lambda item: (kind, values(item))


# What a shard holds many of. What dataclasses do by themselves takes four times as long to read back.
_REDUCERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: _reducer(kind) for kind in (Frame, ProcessGroup, DumpFile, RankDump)
}


class Fell(NamedTuple):
    """Why a worker has no answer."""

    reason: str


class Worker:
    """A forked process that runs `task` on the files it is asked for. `siblings`: the other workers alive."""

    def __init__(self, task: Task, memory_bytes: int, timeout_s: float, siblings: Sequence[Worker]) -> None:
        self.alive = True
        self._timeout_s = timeout_s
        self._deadline = 0.0
        self._channel, theirs = socket.socketpair()
        # An interrupt must neither lose the number of the child nor unwind into our code within it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            self._pid = _fork()
            if self._pid == 0:
                ours = [worker._channel for worker in (self, *siblings)]
                _serve(theirs, ours, blocked, partial(_attempt, task, memory_bytes), timeout_s)
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def fileno(self) -> int:
        """What becomes readable when there is an answer."""
        return self._channel.fileno()

    @property
    def seconds_left(self) -> float:
        """Until the limit, not below 0."""
        return max(0.0, self._deadline - time.monotonic())

    def ask(self, files: Sequence[DumpFile]) -> None:
        """Starts on these files."""
        self._deadline = time.monotonic() + self._timeout_s + GRACE_S
        self._channel.settimeout(self._timeout_s + GRACE_S)
        try:
            _send(self._channel, files)
        except OSError:
            pass  # it is gone; `answer` says so

    def answer(self) -> Shard | Fell:
        """What it answers; a worker that does not is ended."""
        self._channel.settimeout(max(self.seconds_left, GRACE_S))
        late = False
        try:
            answer = _receive(self._channel)
            if isinstance(answer, (Shard, Fell)):
                return answer
        except OSError as error:
            late = isinstance(error, TimeoutError)
        status = self.end()
        if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM):
            return Fell(f"decoding it takes longer than {self._timeout_s:g} s: it is damaged or an attack")
        return Fell("the process that decoded it fell: it is damaged or an attack")

    def end(self) -> int:
        """Ends the process at once; its exit status as of `os.waitpid`."""
        if not self.alive:
            return 0
        self.alive = False
        self._channel.close()
        try:
            os.kill(self._pid, signal.SIGKILL)
            return os.waitpid(self._pid, 0)[1]
        except (ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored, the kernel has reaped it
            return 0


def wait(workers: Sequence[Worker]) -> list[Worker]:
    """Those that have an answer or are over their limit; waits for the first."""
    poll = select.poll()
    for worker in workers:
        poll.register(worker, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(1000 * min(w.seconds_left for w in workers) + 1)}
    return [w for w in workers if w.fileno() in ready or not w.seconds_left]


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads. numpy's hold no lock that the child needs: it calls no BLAS.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _serve(
    channel: socket.socket,
    not_ours: Sequence[socket.socket],
    mask: Iterable[int],
    attempt: Callable[[Sequence[DumpFile]], Shard | Fell],
    timeout_s: float,
) -> NoReturn:
    code = 1
    try:
        for other in not_ours:  # else they would stay open after the parent is gone
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then ends us
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        gc.freeze()
        _keep_freed_memory()
        while isinstance(files := _receive(channel), tuple):
            signal.setitimer(signal.ITIMER_REAL, timeout_s)  # its default action ends even a loop in C
            answer = attempt(files)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _send(channel, answer)
            del answer
        code = 0
    finally:
        os._exit(code)


def _attempt(task: Task, memory_bytes: int, files: Sequence[DumpFile]) -> Shard | Fell:
    restricted_pickle.limit_memory(memory_bytes + restricted_pickle.BYTES_PER_BYTE * sum(file.size for file in files))
    try:
        return task(files)
    except UnhangError as error:
        return Fell(str(error))
    except Exception as error:  # noqa: BLE001  one dump must not cost the others, whatever is wrong with it
        return Fell(f"decoding it failed ({type(error).__name__}: {restricted_pickle.describe(error)})")


def _keep_freed_memory() -> None:
    """Columns are made and freed by the thousand: to give each back to the kernel and get it again, page by page, takes longer than to fill it."""
    with suppress(OSError, AttributeError):  # another libc
        set_option = ctypes.CDLL(None).mallopt
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            set_option(option, _KEPT_BYTES)


def _send(channel: socket.socket, message: object) -> None:
    """Arrays travel beside the pickle, uncopied."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    channel.sendall(b"".join(_COUNT.pack(n) for n in (len(parts), *(part.nbytes for part in parts))))
    for part in parts:
        channel.sendall(part)


def _receive(channel: socket.socket) -> object:
    """The next message; False at the end of the channel.

    Raises:
        OSError: it does not come in time, or the channel is broken.
    """
    head = _exactly(channel, _COUNT.size)
    if head is None:
        return False
    lengths = _exactly(channel, _COUNT.size * _COUNT.unpack(head)[0])
    parts = [_exactly(channel, n) for (n,) in _COUNT.iter_unpack(lengths or b"")]
    if not parts or None in parts:
        return False
    return pickle.loads(parts[0] or b"", buffers=parts[1:])


def _exactly(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = channel.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data
