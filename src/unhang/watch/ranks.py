"""The ranks of the job as the watcher sees them: one page of shared memory each, polled without disturbing the process; C++ frames where asked for."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unhang.watch import BOOTSTRAP
from unhang.watch.folders import fields_of, write_whole
from unhang.watch.process import ProcessProbe, exit_code_of_zombie
from unhang.watch.process_tree import descendants_of

_HEADER_BYTES = 96
_STATUS_AT, _STATUS_BYTES = 4096, 4096
_TURNS_PER_SAMPLE = 3
_PIDFD_INFO = struct.Struct("=Q52xi")  # what is given, then ids; the wait status
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
_MOVEMENT = slice(32, 40), slice(64, 88)  # optimizer steps; ring position, initialised, ended
_INITIALISED = slice(72, 80)
_STEPS = struct.Struct("<Q")
_GROUP = struct.Struct("<Qqqq")  # of the status: number + 1, last enqueued, last completed, unused
# Jobs without an optimizer of torch: more calls on one group than setting up makes.
_CALLS_OF_A_START = 32
_TURN_S = 0.5
DEATH_GRACE_S, _MOST_BUSY = 2.0, 5.0


def death_grace_s() -> float:
    """How long peers and launcher may take to follow a rank that ended; on a machine with more work than cores it is longer."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return DEATH_GRACE_S * min(max(busy, 1.0), _MOST_BUSY)


def exit_code_of_reaped(pidfd: int) -> int | None:
    """The exit code (negative: signal) of a process that its parent has reaped, by a descriptor from before; Linux 6.15 and later.

    Source: linux/pidfd.h, PIDFD_GET_INFO, PIDFD_INFO_EXIT.
    """
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, 0)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    given, status = _PIDFD_INFO.unpack(info)
    return os.waitstatus_to_exitcode(status) if given & _PIDFD_INFO_EXIT else None


class WatchedRank:
    """One training process: when it last moved, and what became of it. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, folder: Path, now: float) -> None:
        self.folder = folder
        rank, _, pid = folder.name[1:].rpartition("-")
        self.rank, self.pid = int(rank), int(pid)
        self.probe = ProcessProbe(self.pid)
        self.pidfd: int | None = None
        self.is_alive, self.moved_at = True, now
        self.died_at = float("-inf")
        self.is_earlier = False  # of an attempt after which the ranks were started again
        self.seen_end: tuple[int, int | None] | None = None
        self.moved_ns = time.time_ns()
        self._last, self._header, self._turns = b"", b"", 0
        self._page: int | None = None
        self._fault_bytes = 0
        self._kept_state: dict[str, Any] = {}
        self._has_aborted = False
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            self.is_alive = False
        with suppress(OSError):
            self._page = os.open(folder / "page.bin", os.O_RDONLY)

    def _movement(self) -> bytes:
        if self._page is None:
            with suppress(OSError):
                self._page = os.open(self.folder / "page.bin", os.O_RDONLY)
        if self._page is None:
            return b""
        self._header = header = os.pread(self._page, _HEADER_BYTES, 0)
        status = os.pread(self._page, _STATUS_BYTES, _STATUS_AT).rstrip(b"\0")
        return b"".join(header[part] for part in _MOVEMENT) + status

    def poll(self, now: float) -> float | None:
        """Notes movement. Returns the length of the quiet that this ended, if one did."""
        self._turns += 1
        if self._turns % _TURNS_PER_SAMPLE == 1:
            self.probe.sample()
        seen = self._movement()
        if seen == self._last:
            return None
        quiet = now - self.moved_at
        self._last, self.moved_at, self.moved_ns = seen, now, time.time_ns()
        return quiet

    def page(self, offset: int, size: int) -> bytes:
        """A part of the head of its shared-memory page, as it was polled last; fewer bytes where there is none."""
        return self._header[offset : offset + size]

    def has_groups(self) -> bool:
        """Whether init_process_group is behind it, and destroy_process_group is not."""
        return self.page(_INITIALISED.start, 8) == b"\1" + bytes(7)

    def moves(self) -> bool:
        """Whether it has moved since it was last polled."""
        return self._movement() != self._last

    def has_failed(self) -> bool:
        """Whether it raised an exception that nobody caught, or left with an error code."""
        if (self.folder / "error.json").exists():
            return True
        with suppress(OSError, ValueError, AttributeError):
            return json.loads((self.folder / "exit.json").read_bytes()).get("code") not in (0, None)
        return False

    def has_stepped(self) -> bool:
        """Whether it has taken an optimizer step, or made more calls than a start-up does."""
        if len(self._last) < _STEPS.size:
            return False
        if _STEPS.unpack_from(self._last)[0]:
            return True
        status = self._last[sum(part.stop - part.start for part in _MOVEMENT) :]
        padded = status.ljust(-(-len(status) // _GROUP.size) * _GROUP.size, b"\0")
        return any(completed >= _CALLS_OF_A_START for _, _, completed, _ in _GROUP.iter_unpack(padded))

    @property
    def movement(self) -> bytes:
        """What was seen last; equal values mean that nothing moved."""
        return self._last

    def quiet_s(self, now: float) -> float:
        """How long the rank has not moved."""
        return now - self.moved_at

    def is_aborting(self) -> bool:
        """Whether faulthandler has just written a fatal error: the process waits in its SIGABRT handler, or is dead."""
        with suppress(OSError):
            size = os.stat(self.folder / "faulthandler.txt").st_size
            if size > self._fault_bytes:
                with open(self.folder / "faulthandler.txt", "rb") as file:
                    file.seek(self._fault_bytes)
                    new = file.read(65536)
                self._fault_bytes = size
                self._has_aborted = b"Fatal Python error: Aborted" in new
                return b"Fatal Python error" in new
        return False

    def end_abort(self) -> None:
        """Finishes a SIGABRT before its handler ends: where abort() did not raise it, the program would go on there."""
        if self._has_aborted and self.pidfd is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGABRT)

    def see_end(self) -> None:
        """Keeps when the process was seen to have ended, and its exit code; the first time counts.

        Old kernels show the code only until the parent has reaped the process.
        """
        if self.seen_end is None:
            code = exit_code_of_zombie(self.pid)
            if code is None and self.pidfd is not None:
                code = exit_code_of_reaped(self.pidfd)
            self.seen_end = time.time_ns(), code

    def note_death(self) -> tuple[int, int | None]:
        """Notes that the process ended; returns the wall-clock time and the exit code."""
        self.see_end()
        assert self.seen_end is not None
        self.is_alive, self.died_at = False, time.monotonic()
        return self.seen_end

    def write_state(self, fields: dict[str, Any]) -> None:
        """Writes proc.json."""
        write_whole(self.folder / "proc.json", json.dumps({**fields, **self._kept_state}).encode())

    def keep_state(self, fields: dict[str, Any]) -> None:
        """Writes proc.json, whose fields no later one replaces: only how the process ends is added. {} lets them go."""
        self._kept_state = fields
        if fields:
            self.write_state({})

    def close(self) -> None:
        """Releases the descriptors."""
        for descriptor in (self.pidfd, self._page):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)


class DeathClock(threading.Thread):
    """Notes the time and the exit code of each rank that ends, at once: the watcher may be busy with a look for a second.

    Which of two ends came first tells a signal from outside from the launcher's answer to a failed rank.
    """

    def __init__(self) -> None:
        super().__init__(name="unhang-deaths", daemon=True)
        self._epoll, self._ranks = select.epoll(), dict[int, WatchedRank]()
        self._is_over = False

    def add(self, rank: WatchedRank) -> None:
        """Watches one more process; one without a descriptor has ended already."""
        if rank.pidfd is not None:
            self._ranks[rank.pidfd] = rank
            with suppress(OSError):  # not possible here: the watcher's own loop sees the end, later
                self._epoll.register(rank.pidfd, select.EPOLLIN)

    def run(self) -> None:
        """Notes ends until `stop`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they shall wake the main thread
        while not self._is_over:
            for descriptor, _ in self._epoll.poll(_TURN_S):
                self._ranks[descriptor].see_end()
                self._epoll.unregister(descriptor)

    def stop(self) -> None:
        """Lets the thread end with its present turn. Blocks: never."""
        self._is_over = True


NATIVE, LIMIT_S = "native.json", 30.0
_AT_ONCE, _MOST_RANKS, _MOST_FRAMES, _LONGEST = 2, 16, 64, 300


def take_native(ranks: Sequence[WatchedRank], program: str | None, limit_s: float = LIMIT_S) -> None:
    """Writes native.json of each rank, at most 16 of them: the main thread's frames, or why there are none. Blocks: up to `limit_s`.

    `py-spy dump --native` takes half a second of a processor and 300 MB for each, so only where they are asked for.
    """
    deadline = time.monotonic() + limit_s
    wanted = [rank for rank in ranks if not rank.probe.is_stopped()][:_MOST_RANKS]
    for at in range(0, len(wanted), _AT_ONCE):
        running = [(rank, _start_native(rank.pid, program)) for rank in wanted[at : at + _AT_ONCE]]
        for rank, process in running:
            write_whole(rank.folder / NATIVE, json.dumps(_ended_native(process, rank.pid, deadline)).encode())


def _start_native(pid: int, program: str | None) -> subprocess.Popen[bytes] | None:
    if program is None:
        return None
    with suppress(OSError):
        command = [program, "dump", "--json", "--native", "--full-filenames", "--pid", str(pid)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return None


def _ended_native(process: subprocess.Popen[bytes] | None, pid: int, deadline: float) -> dict[str, object]:
    if process is None:
        return {"missing": "py-spy is not installed"}
    try:
        out, said = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"missing": "py-spy --native had not ended in time"}
    with suppress(ValueError, TypeError, AttributeError):
        threads = json.loads(out)
        main = next((t for t in threads if t.get("os_thread_id") in (pid, None)), None)
        if main is not None:
            given = [(f.get("filename", ""), f.get("line", 0), f.get("name", "")[:_LONGEST]) for f in main["frames"]]
            return {"frames": given[:_MOST_FRAMES]}
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return {"missing": f"py-spy --native: {lines[0][:_LONGEST] if lines else 'no answer'}"}


def adopt(run_dir: Path, found: Mapping[int, int]) -> None:
    """Makes folders for processes that have none, so that their stacks are taken like those of the others."""
    for rank, pid in found.items():
        folder = run_dir / "ranks" / f"r{rank}-{pid}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "identity.json", json.dumps({"rank": rank, "pid": pid, "is_adopted": True}).encode())


def mark_adopted(folder: Path) -> None:
    """Says of a rank's folder that it is our making, where it was made from looks."""
    if identity := fields_of(folder / "identity.json"):
        write_whole(folder / "identity.json", json.dumps({**identity, "is_adopted": True}).encode())


def is_adopted(folder: Path) -> bool:
    """Whether a folder is our making, and the process has not announced itself since."""
    return bool(fields_of(folder / "identity.json").get("is_adopted"))


def disown(folder: Path) -> None:
    """The job went on: the process will register itself."""
    if is_adopted(folder):
        shutil.rmtree(folder, ignore_errors=True)


# Processes that must be ranks, and did not announce themselves.

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TOGETHER_S = 5.0
_DIGITS = re.compile(rb"\d+")


@dataclass(frozen=True)
class _Found:
    """What /proc tells of a process. `command`: its arguments without numbers, which differ between ranks."""

    pid: int
    parent: int
    start_s: float
    command: bytes
    rank: int | None
    is_launched: bool = False
    is_led: bool = False  # to the recorder, by its PYTHONPATH


def unregistered(missing: Collection[int], registered: Iterable[int], members: Iterable[int]) -> dict[int, int]:
    """The pids of missing ranks, where the processes leave no choice.

    Args:
        missing: the ranks that are waited for.
        registered: pids of the ranks that are known.
        members: pids of all processes of the job.

    Returns:
        rank -> pid: the process that its launcher gave the rank's number; or, of one rank alone, the one process that the
        same parent started together with the known ranks and with the same command.
    """
    known = {pid: found for pid in registered if (found := _read(pid)) is not None}
    others = {pid: found for pid in members if pid not in known and (found := _read(pid)) is not None}
    numbered = _by_number(missing, others)
    if numbered or len(missing) != 1:
        return numbered
    alike = [o for o in others.values() if o.rank is None and any(_are_siblings(o, k) for k in known.values())]
    return dict.fromkeys(missing, alike[0].pid) if len(alike) == 1 else {}


def _by_number(missing: Collection[int], others: Mapping[int, _Found]) -> dict[int, int]:
    """By RANK in the environment that they were started with; helpers inherit it from the rank itself."""
    found: dict[int, list[int]] = {}
    for other in others.values():
        above = others.get(other.parent)
        if other.rank in missing and other.rank is not None and (above is None or above.rank != other.rank):
            found.setdefault(other.rank, []).append(other.pid)
    return {rank: pids[0] for rank, pids in found.items() if len(pids) == 1}


def _are_siblings(one: _Found, other: _Found) -> bool:
    is_alike = (one.parent, one.command) == (other.parent, other.command)
    return is_alike and abs(one.start_s - other.start_s) <= _TOGETHER_S


def _read(pid: int) -> _Found | None:
    with suppress(OSError, ValueError, IndexError):
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        command = _DIGITS.sub(b"#", (folder / "cmdline").read_bytes())
        if fields[0] in "ZX" or "python" not in os.path.basename(os.readlink(folder / "exe")):
            return None
        given = dict(x.split(b"=", 1) for x in (folder / "environ").read_bytes().split(b"\0") if b"=" in x)
        rank = given.get(b"RANK", b"")
        start_s, number = int(fields[19]) / _TICKS_PER_S, int(rank) if rank.isdigit() else None
        is_led = os.fsencode(BOOTSTRAP) in given.get(b"PYTHONPATH", b"").split(b":")
        return _Found(pid, int(fields[1]), start_s, command, number, b"LOCAL_RANK" in given, is_led)
    return None


def adopt_missing(run_dir: Path, root_pid: int, missing: Collection[int], registered: Iterable[int]) -> bool:
    """Whether processes below `root_pid` were found that must be these ranks; they have folders then."""
    found = unregistered(missing, registered, [p.pid for p in descendants_of(root_pid)] if missing else [])
    adopt(run_dir, found)
    return bool(found)


def unrecorded(root_pid: int, only_launched: bool = False, only_misled: bool = False) -> list[int]:
    """The ranks below a process to which their launcher gave a number; helpers inherit it.

    `only_launched`: those that have a number on their machine too, which a launcher that is still at work has not. `only_misled`:
    those whose PYTHONPATH does not lead to the recorder; the others may still import what they need before it announces them.
    """
    seen = [found for p in descendants_of(root_pid) if (found := _read(p.pid)) is not None]
    seen = [x for x in seen if (x.is_launched or not only_launched) and not (x.is_led and only_misled)]
    return sorted({x.rank for x in seen if x.rank is not None})
