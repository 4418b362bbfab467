"""`for batch in unhang.watch_loader(loader):` says which worker has died or stands still, and why, while the loop waits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from unhang.inside.guards.forecast import descriptors, shared_memory_free
from unhang.inside.guards.shared_memory import process_fields
from unhang.inside.guards.words import Duration, log, seconds_of
from unhang.inside.guards.worker import Worker, stack_of
from unhang.inside.rank import who

T = TypeVar("T")
DEFAULT_LIMIT_S = 60.0
_LOOK_S = 0.5
_COUNT_EVERY_S = 5.0
_STACK_LIMIT_S = 3.0
_END_LIMIT_S = 1.0
_MOST_STACKS = 2
_NEARLY = 0.8
_LITTLE_SHARED_MEMORY = 64 << 20
_MEANINGS = {
    signal.SIGKILL: "usually the kernel, because memory ran out (see dmesg), or a limit of the container",
    signal.SIGBUS: "usually /dev/shm is full (docker: --shm-size), or a memory-mapped file has been cut",
    signal.SIGSEGV: "a crash in native code of the dataset (decoders, transforms)",
    signal.SIGABRT: "native code gave up: an assertion, or memory that is corrupt",
    signal.SIGTERM: "somebody ended it: a scheduler, or a script",
    signal.SIGINT: "interrupted from the keyboard",
}


class LoaderCounts(NamedTuple):
    """What a loader holds at this moment; None where the system does not say. Descriptors are those of this process."""

    workers: int
    open_fds: int | None
    fd_limit: int | None
    shm_free: int | None
    worker_fds: tuple[int, ...] = ()


class WatchedLoader(Generic[T]):
    """A loader that is watched while it is iterated over. Made by `watch_loader`."""

    def __init__(self, loader: Any, limit_s: float, say: Callable[[str, str], None] = log) -> None:
        self.loader, self.limit_s = loader, limit_s
        self._say = say
        self._watches: list[_Watch] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[T]:
        watch = _Watch(self.loader, self.limit_s, self._say)
        self._watches = [watch]
        try:
            iterator = iter(self.loader)
            watch.workers = list(getattr(iterator, "_workers", ()))
            watch.iterator = iterator
            while True:
                watch.since = time.monotonic()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                watch.since = 0.0
                yield batch
        except Exception as error:
            # Not what the loop's body raises: that does not come through here.
            clearer = watch.explain(error)
            if clearer is error:
                raise
            raise clearer from error
        finally:
            watch.stop()

    def counts(self) -> LoaderCounts:
        """Workers that live, open descriptors, free shared memory. Blocks: never."""
        workers = [w.pid for watch in self._watches for w in watch.workers if ended(w) is None]
        return LoaderCounts(len(workers), *descriptors(), shared_memory_free(), tuple(map(_fds_of, workers)))


class _Watch:
    """The thread that looks after one pass over a loader."""

    def __init__(self, loader: Any, limit_s: float, say: Callable[[str, str], None]) -> None:
        self.workers: list[Any] = []
        self.iterator: Any = None
        # Since when the loop waits for a batch; 0 while it works on one.
        self.since = time.monotonic()
        self._limit_s, self._say = limit_s, say
        self._thread_id = threading.get_ident()
        self._named: set[int] = set()
        self._reporting = threading.RLock()
        self._stuck_since = 0.0
        self._counted = 0.0
        self._has_warned = False
        self._worker = Worker("unhang-loader", self.look)

    def stop(self) -> None:
        """The pass is over. If the loop was left because torch reported the death of a worker, that is logged now."""
        with suppress(Exception):
            self.name_the_dead()
        self._worker.stop(0.0)
        self.iterator = None

    def look(self) -> float:
        """Names workers that have died, and what stands still for longer than the limit."""
        self.name_the_dead()
        since, now = self.since, time.monotonic()
        if since and now - since > self._limit_s and self._stuck_since != since:
            self._stuck_since = since
            self._say("loader", self._stuck(now - since))
        if now - self._counted > _COUNT_EVERY_S:
            self._counted = now
            self._warn_of_shortage()
        # Without workers there is only the loop itself to look after.
        has_no_workers = self.iterator is not None and not self.workers
        return min(_COUNT_EVERY_S if has_no_workers else _LOOK_S, self._limit_s / 4)

    def name_the_dead(self, may_end: bool = True) -> str:
        """Reports each worker that has ended, once; returns what is known of all that have.

        `may_end`: exit code 0 is no failure, as of a worker whose part of an iterable dataset is used up.
        """
        texts = []
        # The watching thread and the loop may see the same death: the second waits until it is reported.
        with self._reporting:
            for number, worker in enumerate(self.workers):
                code = ended(worker)
                if code is None or (may_end and not code):
                    continue
                text = f"worker {number} (pid {worker.pid}) {_ending(code)}"
                texts.append(text)
                if worker.pid not in self._named:
                    self._say("loader", f"{who()}{text}; {_resources()}")
                    self._named.add(worker.pid)
        return "; ".join(texts)

    def explain(self, error: Exception) -> Exception:
        """The error of the loader with what is known of its workers; a broken connection to a dead one becomes its death."""
        for _ in range(2):
            # torch's handler for the end of a child may raise in the midst of this; once for each child.
            with suppress(Exception):
                return self._explained(error)
        return error

    def _explained(self, error: Exception) -> Exception:
        is_broken = isinstance(error, (ConnectionError, EOFError))
        if is_broken:
            self._wait_for_an_end()
        text = self.name_the_dead(may_end="exited unexpectedly" not in str(error))
        if text and is_broken:
            return RuntimeError(f"DataLoader {text}; {_resources()}")
        if not text and "timed out" in str(error):
            text = self._stuck(time.monotonic() - self.since if self.since else 0.0)
        if text:
            error.add_note(f"[loader] {text}; {_resources()}")
        return error

    def _wait_for_an_end(self) -> None:
        """A broken connection is seen before the end of the worker is. Blocks up to a second."""
        until = time.monotonic() + _END_LIMIT_S
        while not any(map(ended, self.workers)) and time.monotonic() < until:
            # torch's handler for the end of a child raises wherever the main thread is, also here.
            with suppress(RuntimeError):
                time.sleep(0.02)

    def _stuck(self, seconds: float) -> str:
        iterator = self.iterator
        head = f"{who()}the loop has waited for a batch for {seconds:.0f} s"
        if iterator is None:
            frame = sys._current_frames().get(self._thread_id)
            return f"{who()}the loader has been starting its workers for {seconds:.0f} s\n{stack_of(frame)}"
        if not self.workers:
            return f"{head}; it has no workers\n{stack_of(sys._current_frames().get(self._thread_id))}"
        awaited = _awaited(iterator)
        alive = [number for number, worker in enumerate(self.workers) if ended(worker) is None]
        numbers = [awaited] if awaited in alive else alive
        lines = [f"{head}; {len(alive)} of {len(self.workers)} workers live; {_resources()}"]
        for number in numbers[:_MOST_STACKS]:
            pid = self.workers[number].pid
            due = " whose batch is next" if number == awaited else ""
            lines.append(f"worker {number} (pid {pid}){due}: {_state(pid)}")
            lines.append(stack_from_outside(pid) or "  no stack: py-spy is not installed, or may not read this process")
        return "\n".join(lines)

    def _warn_of_shortage(self) -> None:
        open_fds, limit = descriptors()
        free = shared_memory_free()
        is_short = open_fds is not None and limit is not None and open_fds > _NEARLY * limit
        if not self._has_warned and (is_short or (free is not None and free < _LITTLE_SHARED_MEMORY)):
            self._has_warned = True
            self._say("loader", f"{who()}nearly used up: {_resources()}")


def watch_loader(loader: Any, limit_s: Duration = DEFAULT_LIMIT_S) -> WatchedLoader[Any]:
    """A loader that says, while the loop waits for it, which worker has died and of what, or where it stands still.

    It costs about a microsecond per batch, and a look at the workers twice a second from a thread.

    Example:
        import torch
        import unhang

        data = torch.utils.data.TensorDataset(torch.arange(8))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        watched = unhang.watch_loader(loader, limit_s=30)
        assert [batch[0].tolist() for batch in watched] == [[0, 1, 2, 3], [4, 5, 6, 7]]

    Args:
        loader: a DataLoader, with workers or without, or anything else that is iterated over.
        limit_s: a batch, or the start of the workers, that takes longer is reported, with the stack of the worker.

    Raises:
        ValueError: no sensible limit.

    Blocks: as the loader itself does.
    """
    return WatchedLoader(loader, seconds_of(limit_s))


def ended(worker: Any) -> int | None:
    """The exit code of a worker (negative: the signal), or None while it lives. Leaves it to the loader to reap it."""
    known = getattr(getattr(worker, "_popen", None), "returncode", None)
    if known is not None:
        return int(known)
    try:
        found = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, TypeError):
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _ending(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}: something in the dataset left the process"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    meaning = _MEANINGS.get(number, "")
    return f"was killed by {number.name}" + (f": {meaning}" if meaning else "")


def _awaited(iterator: Any) -> int | None:
    """The worker whose batch comes next, as the loader keeps it."""
    try:
        return int(iterator._task_info[iterator._rcvd_idx][0])
    except Exception:  # noqa: BLE001 - not kept by this version of torch
        return None


def _state(pid: int) -> str:
    """What /proc says of a process: running, waiting and for what, or stopped."""
    words = {
        "R": "running",
        "S": "waiting",
        "D": "waiting for a disk or a network file system",
        "T": "stopped",
        "Z": "ended",
    }
    state = where = ""
    if fields := process_fields(pid):
        state = words.get(fields[0], fields[0])
    with suppress(OSError):
        where = Path(f"/proc/{pid}/wchan").read_text().strip("0\n ")
    return (state or "unknown") + (f", in the kernel's {where}" if where else "")


def stack_from_outside(pid: int) -> str:
    """The stack by py-spy where it is installed and may read the process; else empty. Blocks up to three seconds."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None or os.environ.get("UNHANG_NO_PTRACE"):
        return ""
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_STACK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.startswith("    "))[:2000] if not done.returncode else ""


def _fds_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _resources() -> str:
    open_fds, limit = descriptors()
    free = shared_memory_free()
    parts = [f"{open_fds} descriptors open of {limit or 'unlimited'}"] if open_fds is not None else []
    parts += [f"{free / 1e6:.0f} MB of /dev/shm free"] if free is not None else []
    return ", ".join(parts)
