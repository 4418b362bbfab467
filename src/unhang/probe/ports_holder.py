"""Which process holds a listening socket, whether it is left over from an earlier job, and how to end exactly that one."""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19  # fields of /proc/PID/stat after the command's name
_KEPT = ("RANK", "TORCHELASTIC_RUN_ID")
_REAPERS = ("systemd", "init", "tini", "dumb-init", "docker-init", "containerd-shim", "conmon", "catatonit")
_LAUNCHERS = [
    "torchrun",
    "torch.distributed",
    "srun",
    "slurmstepd",
    "mpirun",
    "mpiexec",
    "orted",
    "prted",
    "hydra",
    "deepspeed",
    "accelerate",
    "ray",
    "python",
]
_SECRET = re.compile(r"(?i)((?:token|secret|passw|passphrase|api[-_]?key|credential)[\w-]*[ =:]\s*)\S+")
_MOST_TEXT = 160


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
    has_own_session: (
        bool  # its parent is in another session: it was not started by that one, or was meant to stand alone
    )

    @property
    def is_orphan(self) -> bool:
        """Whether it is a rank whose launcher is gone: somebody who only collects the dead has taken it over."""
        if not self.rank or not self.has_own_session or any(launcher in self.parent for launcher in _LAUNCHERS):
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
    """The variables that tell a rank; nothing else of another process's environment is kept."""
    with suppress(OSError):
        pairs = (item.partition("=") for item in path.read_bytes().decode(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs if name in _KEPT}
    return {}
