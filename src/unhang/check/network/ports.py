"""The ports that the job needs on this host: free, or held by whom; and how to end exactly that one process."""

from __future__ import annotations

import errno
import ipaddress
import os
import platform
import pwd
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.check.areas import Context
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

_DEFAULT_PORT, _SCAN_LIMIT_S = 29500, 1.5
_LISTEN, _WORD_BYTES = "0A", 4
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19  # fields of /proc/PID/stat after the command's name
_KEPT = ("RANK", "TORCHELASTIC_RUN_ID")
_REAPERS = ("systemd", "init", "tini", "dumb-init", "docker-init", "containerd-shim", "conmon", "catatonit")
_LAUNCHERS = re.compile(
    r"torchrun|torch\.distributed|srun|slurmstepd|mpirun|mpiexec|orted|prted|hydra|deepspeed|accelerate|ray|python"
)
_SECRET = re.compile(r"(?i)((?:token|secret|passw|passphrase|api[-_]?key|credential)[\w-]*[ =:]\s*)\S+")
_MOST_TEXT = 160


def ports_of(context: Context) -> dict[int, str]:
    """Port -> why it is looked at. The master's port matters where rank 0 runs; torchrun's default where none is known."""
    member = context.member
    ports = dict.fromkeys(context.options.ports, "asked")
    if not member.port:
        ports.setdefault(_DEFAULT_PORT, "default")
    elif member.rank == 0:
        ports[member.port] = "MASTER_PORT"
    return ports


def read_ports(context: Context) -> Iterator[Reading | Unavailable]:
    """One reading `network.port` per port."""
    for port, role in ports_of(context).items():
        reason = why_not_free(port)
        fields: dict[str, Value] = {"role": role, "is_free": not reason, "is_ours": False}
        if reason:
            try:
                fields |= _holder_fields(port) | {"reason": reason}
            except OSError as error:
                yield Unavailable("network.holder", f"who holds port {port} cannot be told: {error}")
        yield Reading("network.port", str(port), fields)


def _holder_fields(port: int) -> dict[str, Value]:
    """Who holds it: of several that share the socket (a fork keeps it) the one that was there first."""
    listeners = listeners_on(port)
    holders = holders_of([listener.inode for listener in listeners], _SCAN_LIMIT_S)
    fields: dict[str, Value] = {"listens": bool(listeners)}
    if listeners:
        fields |= {"address": listeners[0].address, "uid": listeners[0].uid}
    if not holders:
        return fields
    own, holder = set(ancestors_of(os.getpid())), holders[0]
    alike = ("pid", "command", "user", "parent_pid", "run_id", "is_orphan", "started_ticks")
    return (
        fields
        | {name: getattr(holder, name) for name in alike}
        | {
            "age_s": round(holder.age_s),
            "parent": (holder.parent.split() or [""])[0].rpartition("/")[2],
            "rank_of_holder": holder.rank,
            "is_ours": any(holder.pid in own for holder in holders),
        }
    )


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. `inode` leads to the processes that hold it."""

    address: str
    port: int
    inode: int
    uid: int


def listeners_on(port: int) -> tuple[Listener, ...]:
    """The sockets that listen on a port, in this network namespace.

    Raises:
        OSError: the kernel does not show its tables.
    """
    texts = [path.read_text() for path in _TABLES if path.exists()]
    if not texts:
        raise OSError("the kernel shows no /proc/net/tcp")
    return tuple(listener for text in texts for listener in listeners_in(text) if listener.port == port)


def listeners_in(text: str) -> tuple[Listener, ...]:
    """Those of a table in the form of /proc/net/tcp or tcp6."""
    found = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) < 10 or parts[3] != _LISTEN:
            continue
        address, _, port = parts[1].partition(":")
        with suppress(ValueError):
            found.append(Listener(_address(address), int(port, 16), int(parts[9]), int(parts[7])))
    return tuple(found)


def _address(digits: str) -> str:
    """The kernel writes words of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(digits)
    words = [raw[i : i + _WORD_BYTES] for i in range(0, len(raw), _WORD_BYTES)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return str(ipaddress.ip_address(packed))


def why_not_free(port: int) -> str:
    """Tries to bind the port on all addresses, as a store does, and lets it go at once. Empty: it is free."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return error.strerror or str(error)
    return ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a port. `started_ticks` and `pid` together name it for ever: a pid alone is used again."""

    pid: int
    started_ticks: int
    command: str
    user: str
    age_s: float
    parent_pid: int
    parent: str
    rank: str  # RANK in its environment; empty: it is no rank, or its environment is not readable
    run_id: str
    has_own_session: bool  # not that of its parent: it was not started by that one, or was meant to stand alone

    @property
    def is_orphan(self) -> bool:
        """Whether it is a rank whose launcher is gone: somebody who only collects the dead has taken it over."""
        if not self.rank or not self.has_own_session or _LAUNCHERS.search(self.parent):
            return False
        return self.parent_pid == 1 or self.parent.strip("[]").split("/")[-1].startswith(_REAPERS)


def holders_of(inodes: Iterable[int], limit_s: float, proc: Path = Path("/proc")) -> tuple[Holder, ...]:
    """The processes that hold one of these sockets, as far as we may see them. Blocks up to about `limit_s`."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    deadline = time.monotonic() + limit_s
    found = []
    for folder in proc.iterdir():
        if time.monotonic() > deadline:
            break
        if folder.name.isdecimal() and _holds(folder, wanted) and (holder := read_holder(int(folder.name), proc)):
            found.append(holder)
    return tuple(sorted(found, key=lambda holder: holder.age_s, reverse=True))


def _holds(folder: Path, wanted: set[str]) -> bool:
    with suppress(OSError):
        for fd in os.listdir(folder / "fd"):
            with suppress(OSError):
                if os.readlink(folder / "fd" / fd) in wanted:
                    return True
    return False


def read_holder(pid: int, proc: Path = Path("/proc")) -> Holder | None:
    """What /proc tells of a process; None: it is gone."""
    stat = _stat(pid, proc)
    if stat is None:
        return None
    environ = _environ(proc / str(pid) / "environ")
    parent_pid, started = int(stat[_PARENT]), int(stat[_START])
    parent = _stat(parent_pid, proc)
    user = ""
    with suppress(OSError, KeyError):
        uid = (proc / str(pid)).stat().st_uid
        user = str(uid)
        user = pwd.getpwuid(uid).pw_name
    return Holder(
        pid,
        started,
        _command(pid, proc),
        user,
        max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS_PER_S),
        parent_pid,
        _command(parent_pid, proc),
        environ.get("RANK", ""),
        environ.get("TORCHELASTIC_RUN_ID", ""),
        parent is None or parent[_SESSION] != stat[_SESSION],
    )


def ancestors_of(pid: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """The process, its parent, and so on."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        stat = _stat(pid, proc)
        pid = int(stat[_PARENT]) if stat else 0
    return tuple(found)


def end_process(pid: int, started_ticks: int, term_limit_s: float = 5.0, kill_limit_s: float = 5.0) -> str:
    """Ends the process that had this pid and start time: TERM first, KILL after `term_limit_s`. What became of it.

    A handle on the process (pidfd) makes sure that no other one is hit that got the same pid meanwhile.
    Blocks up to both limits.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return "had already ended"
    except OSError as error:
        return f"was left alone: the kernel gives no handle on it ({error.strerror})"
    try:
        now = _stat(pid, Path("/proc"))
        if now is None or now[_STATE] in "ZX":
            return "had already ended"
        if int(now[_START]) != started_ticks:
            return "had already ended; another process has its number now, and was left alone"
        for number, limit_s, word in (
            (signal.SIGTERM, term_limit_s, "ended"),
            (signal.SIGKILL, kill_limit_s, "killed"),
        ):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], limit_s)[0]:
                return word
        return "does not end, not even when killed: it waits in the kernel"
    except ProcessLookupError:
        return "had already ended"
    except PermissionError:
        return "was left alone: it belongs to another user"
    finally:
        os.close(handle)


def _stat(pid: int, proc: Path) -> list[str] | None:
    with suppress(OSError, IndexError):
        return (proc / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    return None


def _command(pid: int, proc: Path) -> str:
    """The command line in short; the name in brackets where there is none."""
    with suppress(OSError):
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if text := " ".join(" ".join(words).split()):
            return _SECRET.sub(r"\1***", text)[:_MOST_TEXT]
    with suppress(OSError):
        return f"[{(proc / str(pid) / 'comm').read_text().strip()}]"
    return ""


def _environ(path: Path) -> Mapping[str, str]:
    """The variables that name a rank; nothing else of another process's environment is kept."""
    with suppress(OSError):
        pairs = (item.partition("=") for item in path.read_bytes().decode(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs if name in _KEPT}
    return {}


def end_orphans(readings: Iterable[Reading], ask: Callable[[str], bool], host: str = "") -> Iterator[str]:
    """Asks for each orphan that holds a port, ends it where the answer is yes, and says what became of it.

    Nothing but an orphan of this host is offered. A process that got the same number meanwhile is left alone.
    Blocks: as long as `ask`, and up to 10 s for each process.
    """
    here = host or platform.node()
    seen: set[tuple[str, int]] = set()
    for reading in readings:
        pid, started = reading.number("pid"), reading.number("started_ticks")
        if reading.kind != "network.port" or reading["is_orphan"] is not True or pid is None or started is None:
            continue
        if (reading.host, int(pid)) in seen:
            continue
        seen.add((reading.host, int(pid)))
        what = f"process {int(pid)} ({reading.text('command')}), which holds port {reading.subject}"
        if reading.host not in ("", here):
            yield f"{what}: it is on {reading.host}; run unhang check --end-orphans there"
        elif not ask(f"End {what}?"):
            yield f"{what}: left alone"
        else:
            yield f"{what}: {end_process(int(pid), int(started))}"
