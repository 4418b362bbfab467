"""Where the watchers of one job meet, under which name, and what they share that nobody else knows."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import WrongUsage

if TYPE_CHECKING:
    import ssl

PORT, PORTS = 29437, 8
TOKEN_FILE = ".unhang-token"
LEAST_TOKEN = 16
NO_TOKEN = "give all nodes one UNHANG_TOKEN (16 characters or more), or a --report-dir that all of them can write"
_OFF = ("off", "no", "0", "")
_LAUNCHERS = re.compile(r"(torchrun|accelerate|deepspeed)$|^torch\.distributed\.(run|launch)$")
_TASKS = (
    *(("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")),
    *(("PMI_SIZE", "PMI_RANK"), ("WORLD_SIZE", "RANK")),
)
_FIRST = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_TLS = ("UNHANG_JOIN_CERT", "UNHANG_JOIN_KEY")
_JOB = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


class Address(NamedTuple):
    """Where a watcher listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Join:
    """How to meet. `hub`: the address of which the first watcher that can bind it is the hub. `job`: what all nodes of this job know, and other jobs do not.

    `may_bind_all`: this is the first node by its launcher's word, so it is the hub though the hub's name is none of its addresses.
    """

    hub: Address
    job: str
    token: str = field(repr=False)
    may_bind_all: bool = False
    cert: Path | None = None
    key: Path | None = None

    def tls(self, is_server: bool) -> ssl.SSLContext | None:
        """The context for one side; None where no certificate was given. The hub's certificate is the one that members trust."""
        if self.cert is None:
            return None
        import ssl

        if is_server:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.cert, self.key)
            return context
        context = ssl.create_default_context(cafile=str(self.cert))
        context.check_hostname = False  # one certificate for all nodes; the token says who is who
        return context


class JoinWishes(NamedTuple):
    """What the command line says of it. `asked`: HOST, HOST:PORT, `auto`, `off`, or None: `auto` where there are several nodes or tasks."""

    asked: str | None = None
    port: int | None = None
    cert: Path | None = None
    key: Path | None = None


def find_join(
    wishes: JoinWishes,
    env: Mapping[str, str],
    command: Sequence[str],
    token_folder: Path | None,
    complain: Callable[[str], None],
) -> Join | None:
    """Where to meet the watchers of other nodes; None where this is the only one, or they cannot meet, which `complain` gets in one line.

    Args:
        wishes: the command line; `UNHANG_JOIN`, `UNHANG_JOIN_PORT`, `UNHANG_JOIN_CERT` and `UNHANG_JOIN_KEY` stand for what it leaves out.
        env: the environment of the job.
        command: its command line.
        token_folder: where a token may lie or be made, if all nodes can see it.
        complain: takes the line.

    Raises:
        WrongUsage: what was asked for is impossible.
    """
    asked, port, cert, key = _with_environment(wishes, env)
    if asked is not None and asked.lower() in _OFF:
        return None
    launch = _launch(command)
    if asked is None and not has_several(env, launch):
        return None
    given = asked if asked not in (None, "auto") else ""
    hub = _address(given) if given else _found_hub(env, launch)
    if hub is None:
        if asked is not None:
            raise WrongUsage(
                "--join auto: neither the command nor the environment tells a first node; give --join HOST:PORT"
            )
        return None
    hub = Address(hub.host, port or (hub.port if given and hub.port else PORT))
    job = _job(env, launch)
    token = env.get("UNHANG_TOKEN") or ""
    if token and len(token) < LEAST_TOKEN:
        complain(f"UNHANG_TOKEN has fewer than {LEAST_TOKEN} characters; this node judges alone")
        return None
    token = token or _token_in(_own_folder(hub, job) if is_loopback(hub.host) else token_folder)
    if not token:
        complain(f"the watchers of other nodes at {hub} are not joined without a token: {NO_TOKEN}")
        return None
    first = next(
        (env[name] for name in _FIRST if name in env), launch.get("node-rank") or launch.get("machine-rank", "")
    )
    return Join(hub, job, token, first == "0" and not given, cert, key)


def _with_environment(wishes: JoinWishes, env: Mapping[str, str]) -> JoinWishes:
    port = env.get("UNHANG_JOIN_PORT", "")
    if not wishes.port and port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise WrongUsage(f"UNHANG_JOIN_PORT={port}: no port")
    asked = wishes.asked if wishes.asked is not None else env.get("UNHANG_JOIN")
    files = [given or (Path(env[n]) if env.get(n) else None) for given, n in zip(wishes[2:], _TLS, strict=True)]
    for path in files:
        if path is not None and not os.access(path, os.R_OK):
            raise WrongUsage(f"{path}: it cannot be read (--join-cert, --join-key)")
    return JoinWishes(asked, wishes.port or (int(port) if port else None), *files)


def is_loopback(host: str) -> bool:
    """Whether a name or address stands for this machine alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _launch(command: Sequence[str]) -> dict[str, str]:
    """The options of a launcher on the command line, up to the program that it starts."""
    words = [os.path.basename(word) if "/" in word else word for word in command]
    start = next((i for i, word in enumerate(words) if _LAUNCHERS.search(word)), None)
    found: dict[str, str] = {}
    rest = list(command[start + 1 :]) if start is not None else []
    rest = rest[1:] if rest[:1] == ["launch"] else rest
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").replace("_", "-").partition("=")
        if (
            not equals
            and rest
            and not rest[0].startswith("-")
            and name not in ("standalone", "no-python", "module", "m")
        ):
            value = rest.pop(0)
        found[name] = value
    return found


def _whole(text: str | None) -> int:
    """The largest number in `2`, `1:4`; 0 if there is none."""
    last = (text or "").rpartition(":")[2]
    return int(last) if last.isdecimal() else 0


def has_several(env: Mapping[str, str], launch: Mapping[str, str]) -> bool:
    """Whether several `unhang run`s run this job: several nodes of the launcher, or several tasks of which this is one."""
    if nodes := launch.get("nnodes") or launch.get("num-machines"):
        return _whole(nodes) > 1
    if any(_whole(env.get(size)) > 1 and env.get(number, "").isdecimal() for size, number in _TASKS):
        return True
    return _whole(env.get("SLURM_NNODES")) > 1 and "SLURM_PROCID" in env


def _found_hub(env: Mapping[str, str], launch: Mapping[str, str]) -> Address | None:
    named = _address(launch.get("rdzv-endpoint", ""))
    if named is not None and named.host:
        return named
    first = first_host(
        env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    )
    host = launch.get("master-addr") or launch.get("main-process-ip") or env.get("MASTER_ADDR") or first
    return Address(host, 0) if host else None


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts: `a[007-9,12],b` -> `a007`."""
    head = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in head.groups()) if head else ""


def _address(text: str) -> Address | None:
    """HOST, HOST:PORT or [HOST]:PORT.

    Raises:
        WrongUsage: its port is none.
    """
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]*))(?::(\d{1,5}))?", text)
    if match is None or int(match[3] or 0) > 65535:
        raise WrongUsage(f"--join {text}: not a HOST:PORT")
    host = match[1] or match[2]
    return Address(host, int(match[3] or 0)) if host else None


def _job(env: Mapping[str, str], launch: Mapping[str, str]) -> str:
    """What the nodes of a job know in common, and other jobs on the same first node do not. No names of hosts: they have several."""
    port = _address(launch.get("rdzv-endpoint", ""))
    own = {
        "rdzv-id": launch.get("rdzv-id"),
        "port": launch.get("master-port") or launch.get("main-process-port") or (str(port.port) if port else ""),
    }
    found = {**own, **{name: env.get(name) for name in _JOB if name != "MASTER_PORT" or not launch}}
    return " ".join(f"{name}={value}" for name, value in found.items() if value)


def _own_folder(hub: Address, job: str) -> Path | None:
    """A folder that only this user of this machine can read, for the token of a job that does not leave it."""
    from unhang.watch.folders import LOCK, SHARED_MEMORY, own_folder

    name = hashlib.sha256(f"{hub}\0{job}".encode()).hexdigest()[:12]
    for parent in (SHARED_MEMORY, Path("/tmp")):
        with suppress(OSError):
            if folder := own_folder(parent):
                (folder / f"join-{name}").mkdir(mode=0o700, exist_ok=True)
                (folder / f"join-{name}" / LOCK).touch()  # so that it is swept away one day
                return folder / f"join-{name}"
    return None


def _token_in(folder: Path | None) -> str:
    """The token that lies in a folder; the first that comes makes it, whole or not at all. "" where that is impossible."""
    if folder is None:
        return ""
    path, own = folder / TOKEN_FILE, folder / f"{TOKEN_FILE}.{socket.gethostname()}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            with suppress(FileExistsError):
                os.link(own, path)
        status = path.stat()
        is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o077
        return path.read_text().strip() if is_ours else ""
    except (OSError, ValueError):
        return ""
    finally:
        own.unlink(missing_ok=True)
