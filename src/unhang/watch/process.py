"""What /proc and py-spy tell of one process from outside: state, CPU use, descriptors, memory, exit code, and its stacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from unhang.watch.process_tree import kernel_waits, line_of, reads_its_input, stat_of

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WORKING_SHARE = 0.05
_STATE, _UTIME, _STIME, _CUTIME, _CSTIME, _START, _EXIT_CODE = 0, 11, 12, 13, 14, 19, 49
_MOST_DESCENDANTS, _MOST_CHILDREN = 64, 8
_LEAST_SPAN_S = 0.5


def children_of(pid: int) -> list[int]:
    """The direct children of all threads of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _children_used_s(pid: int) -> float | None:
    """CPU time of all that a process started, also of what has ended; None where it started nothing."""
    stat, todo, seen, ticks = stat_of(pid), [pid], 0, 0
    while todo and seen < _MOST_DESCENDANTS:
        for child in children_of(todo.pop()):
            if (of_child := stat_of(child)) is not None:
                ticks += sum(int(of_child[i]) for i in (_UTIME, _STIME, _CUTIME, _CSTIME))
                todo.append(child)
                seen += 1
    ended = sum(int(stat[i]) for i in (_CUTIME, _CSTIME)) if stat else 0
    return (ticks + ended) / _TICKS_PER_S if seen or ended else None


def exit_code_of_zombie(pid: int) -> int | None:
    """The exit code (negative: signal) of a process that ended and is not reaped yet, where the kernel shows it."""
    stat = stat_of(pid)
    if stat is None or stat[_STATE] not in "ZX" or len(stat) <= _EXIT_CODE:
        return None
    status = int(stat[_EXIT_CODE])
    return os.waitstatus_to_exitcode(status) if status or stat[_STATE] == "Z" else None


def are_at_work(pids: Iterable[int], over_s: float) -> bool:
    """Whether one of these processes works, or would if it had a core or its disk answered. Blocks: up to `over_s`."""
    probes = [ProcessProbe(pid) for pid in pids]
    wanting = {probe.pid for probe in probes}
    for pause_s in (over_s, 0.0) if probes else ():
        for probe in probes:
            probe.sample()
        wanting &= {probe.pid for probe in probes if probe.wants_to_run()}
        time.sleep(pause_s)
    return bool(wanting) or any((probe.cpu_share() or 0.0) >= _WORKING_SHARE for probe in probes)


def oom_kills() -> int | None:
    """How often the kernel killed in our control group for want of memory; on the whole machine, where the group does not tell."""
    with suppress(OSError, StopIteration):
        own = line_of("/proc/self/cgroup", "0::")
        if (counted := _oom_kills_in(f"/sys/fs/cgroup{own}/memory.events")) is not None:
            return counted
    return _oom_kills_in("/proc/vmstat")


def _oom_kills_in(path: str) -> int | None:
    """The number behind `oom_kill` in a file of the kernel's counts; None where there is none."""
    with suppress(OSError, ValueError, StopIteration):
        return int(line_of(path, "oom_kill "))
    return None


def resident_bytes(pid: int) -> int | None:
    """The memory that a process holds; None where it has gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _open_files(pid: int) -> tuple[int | None, int | None]:
    count = limit = None
    with suppress(OSError):
        count = len(os.listdir(f"/proc/{pid}/fd"))
    with suppress(OSError, ValueError, StopIteration):
        limit = int(line_of(f"/proc/{pid}/limits", "Max open files").split()[0])
    return count, limit


@dataclass
class ProcessProbe:
    """Follows one process. CPU use is measured between the oldest sample kept (about a second) and now."""

    pid: int
    _samples: list[tuple[float, float]] = field(default_factory=list)
    _of_children: list[tuple[float, float]] = field(default_factory=list)

    def sample(self) -> None:
        """Notes the CPU time used so far."""
        stat = stat_of(self.pid)
        if stat is not None:
            self._samples.append((time.monotonic(), (int(stat[_UTIME]) + int(stat[_STIME])) / _TICKS_PER_S))
            del self._samples[:-3]

    def cpu_share(self) -> float | None:
        """Cores used over the last second or so."""
        if len(self._samples) < 2:
            return None
        (t0, c0), (t1, c1) = self._samples[0], self._samples[-1]
        return round((c1 - c0) / (t1 - t0), 2) if t1 > t0 else None

    def children_share(self) -> float | None:
        """Cores used since the look before by all that it started; None where that is nothing, or nobody had looked."""
        if (used_s := _children_used_s(self.pid)) is None:
            return None
        now, seen = time.monotonic(), self._of_children
        if not seen or now - seen[-1][0] >= _LEAST_SPAN_S:
            self._of_children = seen = [*seen[-1:], (now, used_s)]
        (began, before_s), since = seen[0], now - seen[0][0]
        return round((used_s - before_s) / since, 3) if since >= _LEAST_SPAN_S and began < now else None

    def wants_to_run(self) -> bool:
        """Whether it would run if it got a core, or waits for a disk."""
        stat = stat_of(self.pid)
        return stat is not None and stat[_STATE] in "RD"

    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP, a debugger): it answers nobody."""
        stat = stat_of(self.pid)
        return stat is not None and stat[_STATE] in "Tt"

    def read(self) -> dict[str, Any]:
        """The fields of proc.json."""
        self.sample()
        stat = stat_of(self.pid)
        files, limit = _open_files(self.pid)
        children = children_of(self.pid)[:_MOST_CHILDREN]
        of_children = {thread: wait for child in children for thread, wait in kernel_waits(child).items()}
        wchan = ""
        with suppress(OSError):
            wchan = Path(f"/proc/{self.pid}/wchan").read_text().strip("0")
        return {
            "state": stat[_STATE] if stat else "gone",
            "cpu_share": self.cpu_share(),
            "children_share": self.children_share(),
            "child_writes": {"call": "write", "file": "pipe"} in of_children.values(),
            "child_asks": any(map(reads_its_input, children)),
            "wchan": wchan,
            "open_fds": files,
            "fd_limit": limit,
            "rss_bytes": resident_bytes(self.pid),
            "threads": {**of_children, **with_peers(self.pid, kernel_waits(self.pid))},
            "taken_ns": time.time_ns(),
            "taken_monotonic_ns": time.monotonic_ns(),
        }


_RAYS_OWN = ("IDLE", "DashboardAgent", "RuntimeEnvAgent")


def workers_of_ray(pids: Iterable[int]) -> dict[int, str]:
    """What each of these workers of Ray is, as Ray writes it into the process's title: `Board.newer_than` amid a call of an actor, else the actor or task."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace").strip()
            if title.startswith("ray::") and not title.removeprefix("ray::").startswith(_RAYS_OWN):
                found[pid] = title.removeprefix("ray::")
    return found


# Columns of /proc/net/tcp, and the state of an open connection there (proc_net_tcp.txt of the kernel).
_LOCAL, _REMOTE, _TCP_STATE, _INODE, _ESTABLISHED, _LISTENS = 1, 2, 3, 9, "01", "0A"
_OF_NOBODY = "0"  # the inode of a connection that waits to be accepted
_RECEIVES = ("read", "recvfrom", "recvmsg")
_FIRST_GIVEN = 32768  # from here on the kernel gives ports to who asks for any; below, somebody has chosen one


def _sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    with suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if (inode := _inode(os.readlink(descriptor.path))) is not None:
                    found.add(inode)
    return found


def _inode(link: str) -> str | None:
    """Of what a descriptor links to: the inode, where it is a socket."""
    return link[len("socket:[") : -1] if link.startswith("socket:[") else None


def _rows(pid: int, *states: str) -> list[list[str]]:
    """The kernel's rows of the TCP connections in these states, of the network that a process sees."""
    rows = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            rows += [line.split() for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return [row for row in rows if row[_TCP_STATE] in states]


def talks_elsewhere(pid: int) -> bool:
    """Whether a process has a TCP connection to another host: it may wait for work that is done there."""
    sockets, rows = _sockets_of(pid), _rows(pid, _ESTABLISHED, _LISTENS)
    here = {row[_LOCAL].rpartition(":")[0] for row in rows}
    mine = (row for row in rows if row[_TCP_STATE] == _ESTABLISHED and row[_INODE] in sockets)
    return any(row[_REMOTE].rpartition(":")[0] not in here for row in mine)


_STORAGE = re.compile(r"fuse|nfs|rpc_|io_schedule|folio|wait_on_page|request_wait_answer|lustre|cl_sync|ceph|blk_|jbd2")


def waits_for_storage(pid: int) -> bool:
    """Whether a process sleeps in the kernel for a disk or a file system: that takes its time without a processor."""
    stat, wchan = stat_of(pid), ""
    with suppress(OSError):
        wchan = Path(f"/proc/{pid}/wchan").read_text()
    return (stat is not None and stat[_STATE] == "D") or bool(_STORAGE.search(wchan))


def may_be_asked(pids: Iterable[int]) -> bool:
    """Whether one of a job's processes listens where others may come to it: on an address that is not the machine's own, at a port that somebody chose.

    The port at which its ranks meet is none.
    """
    job, meet = list(pids), set[int]()
    for pid in job:
        with suppress(OSError, ValueError, IndexError):
            given = Path(f"/proc/{pid}/environ").read_bytes()
            meet.add(int(given.split(b"\0MASTER_PORT=")[1].split(b"\0")[0]))
    listens = (
        [row for row in _rows(job[0], _LISTENS) if not _is_loopback(row[_LOCAL].rpartition(":")[0])] if job else []
    )
    chosen = {
        r[_INODE]
        for r in listens
        if (port := int(r[_LOCAL].rpartition(":")[2], 16)) < _FIRST_GIVEN and port not in meet
    }
    return bool(chosen) and any(not chosen.isdisjoint(_sockets_of(pid)) for pid in job)


def _is_loopback(address: str) -> bool:
    """Of an address as /proc/net/tcp has it: each four bytes turned round."""
    return address.endswith("7F") or address == "0" * 24 + "01000000"


@cache
def _peer(pid: int, local: str, remote: str) -> int:
    """The process at the other end of a connection within this machine; 0 where none is seen."""
    inode = next((r[_INODE] for r in _rows(pid, _ESTABLISHED) if (r[_LOCAL], r[_REMOTE]) == (remote, local)), "")
    if inode == _OF_NOBODY:  # whoever listens there has not taken it yet
        port = remote.rpartition(":")[2]
        listens = {r[_INODE] for r in _rows(pid, _LISTENS) if r[_LOCAL].rpartition(":")[2] == port}
        inode = listens.pop() if len(listens) == 1 else ""
    with suppress(OSError):
        return next((int(p) for p in os.listdir("/proc") if p.isdigit() and inode and inode in _sockets_of(int(p))), 0)
    return 0


def with_peers(pid: int, waits: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """These waits of a process; of one for what comes over a TCP connection from a process of this machine also `peer`: that one."""
    receives = {t: w for t, w in waits.items() if w.get("file") == "socket" and w["call"] in _RECEIVES}
    rows = {row[_INODE]: row for row in _rows(pid, _ESTABLISHED)} if receives else {}
    for thread, wait in receives.items():
        with suppress(OSError, ValueError, IndexError):
            descriptor = int(Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[1], 16)
            row = rows.get(_inode(os.readlink(f"/proc/{pid}/fd/{descriptor}")) or "")
            if row is not None and (peer := _peer(pid, row[_LOCAL], row[_REMOTE])):
                wait["peer"] = str(peer)
    return waits


class WorkProbe:
    """Whether any of some processes works, from one look to the next. Never blocks."""

    def __init__(self) -> None:
        self._probes: dict[int, ProcessProbe] = {}

    def is_at_work(self, pids: Iterable[int]) -> bool:
        """Whether one of them works now, has worked since the last looks, or is seen for the first time."""
        self._probes = {pid: self._probes.get(pid) or ProcessProbe(pid) for pid in pids}
        for probe in self._probes.values():
            probe.sample()
        shares = [probe.cpu_share() for probe in self._probes.values()]
        return any(share is None or share >= _WORKING_SHARE for share in shares) or any(
            probe.wants_to_run() for probe in self._probes.values()
        )


_PAUSE_S = 0.05  # before the next try at a process that another one traces; longer each time


@cache
def py_spy() -> str | None:
    """The py-spy program beside our interpreter or on the path; `UNHANG_NO_PTRACE` leaves it unused."""
    if os.environ.get("UNHANG_NO_PTRACE"):
        return None
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _start(pid: int, is_stopped: bool, options: Sequence[str]) -> subprocess.Popen[bytes] | None:
    program = py_spy()
    if program is None:
        return None
    # A stopped process cannot be paused once more: it is read as it stands.
    how = ["--nonblocking"] if is_stopped else []
    with suppress(OSError):
        return subprocess.Popen(
            [program, "dump", "--json", "--full-filenames", *how, *options, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    return None


def take_stacks(
    pids: Sequence[int], stopped: Sequence[int] = (), timeout_s: float = 3.0, options: Sequence[str] = ()
) -> dict[int, list[Any]]:
    """py-spy's threads of each process, all taken at the same time; a process without stacks is left out.

    `options`: more of py-spy's own.

    Blocks: up to `timeout_s`.
    """
    deadline, pause_s = time.monotonic() + timeout_s, _PAUSE_S
    found: dict[int, list[Any]] = {}
    todo = list(pids)
    while todo:
        running = {pid: _start(pid, pid in stopped, options) for pid in todo}
        todo = [
            pid for pid, process in running.items() if process is not None and _is_held(pid, process, deadline, found)
        ]
        if time.monotonic() + pause_s > deadline:
            break
        if todo:
            time.sleep(pause_s)
            pause_s *= 2
    return found


def _is_held(pid: int, process: subprocess.Popen[bytes], deadline: float, found: dict[int, list[Any]]) -> bool:
    """Takes what py-spy tells of a process into `found`; whether it failed since another one traces that process now.

    A process has one tracer at a time, and py-spy holds it for some ten milliseconds: two who look at the same job at the same
    moment meet. Who may open the memory has the right to trace, so that the refusal passes.
    """
    try:
        out, said = process.communicate(timeout=max(0.05, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    with suppress(ValueError):
        threads = json.loads(out)
        if isinstance(threads, list) and threads:
            found[pid] = _with_our_numbers(pid, threads)
    if pid in found or b"EPERM" not in said:
        return False
    with suppress(OSError):
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
        return True
    return False


def _with_our_numbers(pid: int, threads: list[Any]) -> list[Any]:
    """In a container py-spy finds the numbers that threads have there; by ours the main thread is known."""
    if len(_numbers(Path(f"/proc/{pid}"))) < 2:
        return threads
    ours: dict[int, int] = {}
    with suppress(OSError):
        ours = {_numbers(task)[-1]: int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if _numbers(task)}
    numbers = [t.get("os_thread_id") if isinstance(t, dict) else None for t in threads]
    return [{**t, "os_thread_id": ours[n]} if n in ours else t for t, n in zip(threads, numbers, strict=True)]


def _numbers(folder: Path) -> list[int]:
    """Those of a process or thread, from our namespace to its own."""
    with suppress(OSError, StopIteration):
        return [int(word) for word in line_of(folder / "status", "NSpid:").split()]
    return []
