"""Starts jobs from a process that has imported torch: a second and a half of CPU time less for each. Such a process serves all workers of pytest.

    test --(one request per job)--> server (torch, one thread) --fork--> keeper --fork--> launcher --fork--> ranks

The keeper adopts whatever the launcher leaves behind, so that nothing of a job can hide. The launcher leads a session of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import json
import os
import platform
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NoReturn

# Beside the package, not beside this file: jobs are recorded from a copy of the tests alone.
BOOTSTRAP = Path(str(find_spec("unhang.inside.recorder").origin)).parent / "bootstrap"  # type: ignore[union-attr]
INJECT = BOOTSTRAP.parents[1] / "inject" / "bootstrap" / "sitecustomize.py"
UNHANG = [str(Path(sys.executable).with_name("unhang"))]
FORKRUN = Path(__file__).parent / "ranks" / "forkrun.py"
_LAUNCHER = [sys.executable, str(FORKRUN)]
_TORCHRUN = ["-m", "torch.distributed.run"]
_MODULES = (_TORCHRUN, ["-m", "unhang"])
TORCHRUN = [sys.executable, *_TORCHRUN]
_PR_SET_CHILD_SUBREAPER = 36
_JUDGED_ONCE = "lock_deadlock"
# What the interpreter, torch and the recorder read when they start cannot be changed afterwards.
_AT_START = ("PYTHON", "TORCH_", "OMP_", "MKL_", "LD_", "UNHANG_RUN_DIR")
BUFFER_SIZE_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # read when the first call is made
# The lines of several ranks come through one pipe: they are written whole.
_ALWAYS = {"OMP_NUM_THREADS": "1"}
_OF_PLAIN = {"PYTHONFAULTHANDLER": "1"}  # the recorder has its own use for it
_NEVER = "PYTHONUNBUFFERED"
# CPU seconds of the jobs that have ended: they are no children of this process.
_used_s = [0.0]
_servers: list[subprocess.Popen[bytes]] = []


class WarmJob:
    """A job that the server started: the part of `subprocess.Popen` that the tests use, for text."""

    def __init__(self, answers: int, streams: Sequence[int]) -> None:
        self._answers, self._streams = answers, streams
        self._read = dict.fromkeys((answers, *streams), b"")
        self._selector = selectors.DefaultSelector()
        for descriptor in self._read:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self.keeper = self.pid = 0
        self.returncode: int | None = None
        self.ended_at = 0.0  # when the launcher ended, on the clock of the day
        while not self.pid:
            self._listen(60)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that the job writes until the last of its processes closes the streams.

        Blocks: up to `timeout`. Raises: subprocess.TimeoutExpired.
        """
        until = time.monotonic() + timeout if timeout is not None else float("inf")
        while self.returncode is None or any(map(self._selector.get_map().__contains__, self._streams)):
            if (left_s := until - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("a job", timeout or 0.0)
            self._listen(min(left_s, 1))
        stdout, stderr, *_ = (*(self._read[stream].decode(errors="replace") for stream in self._streams), "", "")
        return stdout, stderr

    def first_line(self, timeout: float) -> str:
        """The first line that the job prints. Blocks: up to `timeout`. Raises: subprocess.TimeoutExpired."""
        until = time.monotonic() + timeout
        while b"\n" not in self._read[self._streams[0]]:
            if (left_s := until - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("a job", timeout)
            self._listen(min(left_s, 1))
        return self._read[self._streams[0]].split(b"\n")[0].decode()

    def poll(self) -> int | None:
        """The exit code of the launcher, None while it runs."""
        self._listen(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the launcher."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def left(self) -> dict[int, str]:
        """What lives of the job: pids with their commands."""
        return dict(_descendants(self.keeper))

    def close(self) -> None:
        """Ends what is left, and counts what the job cost. Blocks: until the last process is gone, 5 s at most."""
        until = time.monotonic() + 5
        while self._answers in self._selector.get_map() and time.monotonic() < until:
            for pid in self.left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._listen(0.1)
        for descriptor in list(self._selector.get_map()):
            self._forget(descriptor)

    def _listen(self, patience_s: float) -> None:
        for key, _ in self._selector.select(patience_s):
            data = os.read(key.fd, 65536)
            self._read[key.fd] += data
            if not data:
                self._forget(key.fd)
            elif key.fd == self._answers:
                *lines, self._read[key.fd] = self._read[key.fd].split(b"\n")
                for line in lines:
                    said: dict[str, Any] = json.loads(line)
                    _used_s[0] += said.pop("cpu_s", 0.0)
                    vars(self).update(said)

    def _forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if descriptor == self._answers and self.returncode is None:
            raise RuntimeError("the server of the jobs has gone")


Job = WarmJob | subprocess.Popen[str]


def _descendants(pid: int) -> list[tuple[int, str]]:
    """The living processes below one, with their command lines."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(folder.name))
    found, wanted = [], [pid]
    while wanted:
        for child in children.get(wanted.pop(), ()):
            wanted.append(child)
            with suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((child, command))
    return found


def used_s() -> float:
    """CPU seconds of the jobs that have ended, and of the servers."""
    ticks = sum(
        sum(map(int, Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()[11:13])) for p in _servers
    )
    return _used_s[0] + ticks / os.sysconf("SC_CLK_TCK")


@cache
def _server(is_recorded: bool) -> socket.socket:
    """A server that all workers of a run of pytest share; it goes when the last of them does.

    `is_recorded`: torch is imported with the recorder, as under `unhang run`.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")[:12]
    path = Path(tempfile.gettempdir(), f"unhang-warm-{run}-{os.getuid()}-{int(is_recorded)}")
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            ours.connect(str(path))
        except OSError:
            _start_server(is_recorded, path)
            ours.connect(str(path))
    return ours


def _start_server(is_recorded: bool, path: Path) -> None:
    path.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != _NEVER} | _ALWAYS
    if not is_recorded:
        environment |= _OF_PLAIN
    else:
        environment |= {"PYTHONPATH": str(BOOTSTRAP), "UNHANG_RUN_DIR": os.devnull}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        code = f"from tests import warm; warm.serve({is_recorded}, {listener.fileno()}, {str(path)!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[1], env=environment, stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()], start_new_session=True,
        )  # fmt: skip
    _servers.append(process)


def _kind(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the server can be for a command: "forkrun", "script", "recorded" with the recorder in it, "unhang", or nothing."""
    is_plain = command[0] == sys.executable and _can_be(command)
    ours = {**os.environ, **_ALWAYS, **(_OF_PLAIN if is_plain else {})}
    names = {name for name in (*ours, *environment) if name.startswith(_AT_START)} - {_NEVER, *BUFFER_SIZE_NAMES}
    if is_plain and "UNHANG_RUN_DIR" in environment and environment.get("PYTHONPATH") == str(BOOTSTRAP):
        return "recorded"
    if any(environment.get(name) not in (None, ours.get(name)) for name in names):
        return ""
    if list(command[:2]) == _LAUNCHER:
        return "forkrun"
    if is_plain:
        return "script"
    return "unhang" if list(command[:1]) == UNHANG else ""


def _can_be(command: Sequence[str]) -> bool:
    """Whether a process of ours can go on as this command."""
    if list(command[:1]) == UNHANG:
        return True
    own = list(command[2:] if "-u" in command[1:2] else command[1:])
    return command[:1] == [sys.executable] and own[:1] != [] and (own[0].startswith("/") or own[:2] in _MODULES)


def _start(
    kind: str, command: Sequence[str], cwd: Path, environment: Mapping[str, str], own: Sequence[int] = (), node: int = 0
) -> WarmJob:
    """`own`: its stdout, stderr and stdin, where they are not to be pipes to us, and nothing. `node`: a process with whose network it runs."""
    request = {"kind": kind, "command": list(command), "cwd": str(cwd), "environment": dict(environment), "node": node}
    pipes = [os.pipe() for _ in range(2 if own else 4)]
    (asked, ask), (answers, answer), *streams = pipes
    given = [asked, answer, *(write for _, write in streams)]
    # Faults that nobody watches meet no recorder.
    is_recorded = kind == "recorded" or (kind == "unhang" and (command[1] != "inject" or "run" in command))
    socket.send_fds(_server(is_recorded), [b"job"], [*given, *own])
    for descriptor in given:
        os.close(descriptor)
    with os.fdopen(ask, "w") as file:
        json.dump(request, file)
    return WarmJob(answers, [read for read, _ in streams])


def forkrun(*arguments: object) -> list[str]:
    """The command of the launcher of the tests."""
    return [*_LAUNCHER, *map(str, arguments)]


def start(
    command: Sequence[str], cwd: Path, output: int, env: Mapping[str, str] | None = None, node: int = 0
) -> WarmJob:
    """Starts what a server can be with both streams in one file. `node`: a process with whose network, host name and mounts it runs."""
    environment = dict(os.environ if env is None else env)
    command = _named(command)
    return _start(_kind(command, environment), command, cwd, environment, (output, output), node)


def get_ready() -> None:
    """Starts the server of what is not recorded, before several threads ask for it."""
    _server(False)


class WarmModule:
    """The part of `subprocess.Popen` that speaks with a process of ours: a module that is run in a fork that has torch already."""

    def __init__(self, command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: object) -> None:
        (inner_in, outer_in), (outer_out, inner_out) = os.pipe(), os.pipe()
        self._job = _start("module", command, Path.cwd(), env, (inner_out, stderr.fileno(), inner_in))
        os.close(inner_in)
        os.close(inner_out)
        self.stdin, self.stdout, self.pid = os.fdopen(outer_in, "wb"), os.fdopen(outer_out, "rb"), self._job.pid
        self.poll, self.end = self._job.poll, self._job.close

    def wait(self, timeout: float) -> None:
        """Blocks: up to `timeout`. Raises: subprocess.TimeoutExpired."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a module", timeout)
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it."""
        self._job.send_signal(signal.SIGKILL)


def _named(command: Sequence[str]) -> Sequence[str]:
    """`python -m unhang` is `unhang`."""
    return [*UNHANG, *command[3:]] if list(command[:3]) == [sys.executable, "-m", "unhang"] else command


def popen(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Job:
    """Starts a command in a session of its own, without input; scripts, `unhang run` of them and `unhang diagnose` come from the warm server."""
    environment = dict(os.environ if env is None else env)
    command = _named(command)
    if kind := _kind(command, environment):
        return _start(kind, command, cwd, environment)
    return cold(command, cwd, environment)


def cold(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """The same, each of its processes an interpreter of its own: for what happens before and while torch is imported."""
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def run(
    command: Sequence[str], cwd: Path, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`, for text. Blocks: up to `timeout`. Raises: subprocess.TimeoutExpired."""
    job = popen(command, cwd, env)
    try:
        stdout, stderr = job.communicate(timeout=timeout)
    finally:
        end(job)
    return subprocess.CompletedProcess(command, job.returncode or 0, stdout, stderr)


def end(job: Job) -> None:
    """Ends what is left of a job."""
    if isinstance(job, WarmJob):
        job.close()
        return
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


# In the server


def serve(is_recorded: bool, listening: int, path: str) -> None:
    """Forks a keeper for each request, until nobody can ask any more."""
    from tests.ranks import forkrun

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # a test that limits its memory may be the first to ask
    forkrun.warm_up_for_any()
    if is_recorded:
        import unhang.cli.diagnose
        import unhang.cli.main
        import unhang.cli.run
        import unhang.watch.agent
        import unhang.watch.supervise  # noqa: F401

        _judge_once()
    listener = socket.socket(fileno=listening)
    clients: list[socket.socket] = [listener.accept()[0]]
    while clients:
        for asked in select.select([listener, *clients], [], [])[0]:
            if asked is listener:
                clients.append(listener.accept()[0])
            elif not _taken(asked, [listener, *clients]):
                clients.remove(asked)
                asked.close()
    for name in (path, f"{path}.lock"):
        with suppress(OSError):
            os.unlink(name)
    os._exit(0)  # an interpreter takes half a second to take torch apart


def _taken(asked: socket.socket, sockets: Sequence[socket.socket]) -> bool:
    """Takes a request and forks its keeper. Whether there was one."""
    data, descriptors, _, _ = socket.recv_fds(asked, 16, 5)
    if data and os.fork() == 0:
        for one in sockets:
            one.close()
        _keep(*descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return bool(data)


def _judge_once() -> None:
    """Judges a recorded job, so that every job finds the rules, their tables and the pages of reports loaded."""
    from tests.ranks.recordings import ARCHIVE
    from unhang.diagnosis import judge_paths
    from unhang.show import render

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            members = [m for m in archive.getmembers() if m.name.split("/")[0] == _JUDGED_ONCE]
            archive.extractall(folder, members, filter="data")
        judged = judge_paths([Path(folder, _JUDGED_ONCE)])
    for form in ("json", "text", "html"):
        render(judged, form)


def _keep(asked: int, answers: int, *streams: int) -> NoReturn:
    """The life of a keeper: until the last process of its job has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with os.fdopen(asked) as file:
        request = json.load(file)
    first = os.fork()
    if first == 0:
        os.close(answers)
        _become(request, *streams)
    for stream in streams:
        os.close(stream)
    _answer(answers, keeper=os.getpid(), pid=first)
    with suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == first:
                _answer(answers, returncode=os.waitstatus_to_exitcode(status), ended_at=time.time())
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _answer(answers, cpu_s=usage.ru_utime + usage.ru_stime)
    os._exit(0)


def _answer(answers: int, **said: object) -> None:
    with suppress(BrokenPipeError):
        os.write(answers, json.dumps(said).encode() + b"\n")


def _become(request: dict[str, Any], stdout: int, stderr: int, stdin: int | None = None) -> NoReturn:
    """The life of the command, in a process that is as an interpreter would be that was started with it."""
    os.setsid()
    if request["node"]:
        _join(request["node"])
    os.chdir(request["cwd"])
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        if descriptor is not None:
            os.dup2(descriptor, number)
            os.close(descriptor)
    if request["kind"] == "forkrun":
        _be_forkrun(request["command"], request["environment"])
    _set_environment(request["environment"])
    if request["kind"] == "module":
        _be_module(request["command"])
    os.posix_spawnp, subprocess._fork_exec = _spawn_by_fork, _exec_by_fork  # type: ignore[attr-defined]
    if request["kind"] == "unhang":
        _be_unhang(request["command"])
    if request["kind"] == "recorded":
        _be_child(request["command"], request["environment"])
    _be_python(request["command"])


def _join(pid: int) -> None:
    """Goes on with network, host name and mounts of a process."""
    for kind in ("net", "uts", "mnt"):
        with open(f"/proc/{pid}/ns/{kind}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"the {kind} of process {pid}")
    platform._uname_cache = None  # type: ignore[attr-defined]


def _be_unhang(command: Sequence[str]) -> NoReturn:
    from unhang.cli.main import main

    sys.argv = list(command)
    _end_with(main())


def _end_with(code: int) -> NoReturn:
    """Ends as an interpreter does."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _be_forkrun(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    from tests.ranks import forkrun

    _set_environment({"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"} | dict(environment))
    sys.argv, sys.path[0] = list(command[1:]), str(FORKRUN.parent)
    forkrun.main()
    raise AssertionError("it ends the process")


def _be_module(command: Sequence[str]) -> NoReturn:
    """`python -m MODULE ...`, with the `sitecustomize` that stands on its path."""
    sys.orig_argv, sys.argv = list(command), list(command[2:])
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if (site := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(site))
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    raise AssertionError("it ends the process")


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


_posix_spawnp = os.posix_spawnp


def _spawn_by_fork(
    path: str, argv: Sequence[str], env: Mapping[str, str], *,
    file_actions: Sequence[tuple[int, int, int]], setsigmask: Collection[int], setsigdef: Collection[int],
) -> int:  # fmt: skip
    """`os.posix_spawnp` for what `_can_be`: a child that has torch and the recorder already."""
    if not _can_be(argv):
        return _posix_spawnp(
            path, argv, env, file_actions=file_actions, setsigmask=setsigmask, setsigdef=setsigdef
        )  # an interpreter ignores these signals again
    if pid := os.fork():
        return pid
    for _, source, target in file_actions:
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.get_inheritable(int(name)):
                os.close(int(name))
    signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
    return _be_child(argv, env)


_fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]


def _exec_by_fork(
    argv: Sequence[str | bytes], executables: Sequence[bytes], close_fds: bool, kept: Sequence[int],
    cwd: bytes | None, env: Sequence[bytes] | None, stdin: int, p2cwrite: int, c2pread: int, stdout: int,
    errread: int, stderr: int, failed_read: int, failed: int, restore_signals: bool, is_new_session: bool, *more: Any,
) -> int:  # fmt: skip
    """What `subprocess.Popen` starts a process with; the same for what `_can_be`."""
    words = [os.fsdecode(word) for word in argv]
    if not _can_be(words):
        return int(
            _fork_exec(
                argv, executables, close_fds, kept, cwd, env, stdin, p2cwrite, c2pread, stdout,
                errread, stderr, failed_read, failed, restore_signals, is_new_session, *more,
            )
        )  # fmt: skip
    if pid := os.fork():
        return pid
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        if descriptor >= 0:
            os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if (int(name) > 2 and int(name) not in kept) or int(name) == failed:
            with suppress(OSError):
                os.close(int(name))
    if is_new_session:
        os.setsid()
    if cwd is not None:
        os.chdir(cwd)
    given = dict(os.environ) if env is None else dict(os.fsdecode(entry).split("=", 1) for entry in env)
    return _be_child(words, given)


def _be_child(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """The life of a command that a process of the job has started."""
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.detach()  # a folder of the parent
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _set_environment(env)
    if (install := sys.modules.get("_unhang_inside.recorder.install")) is not None:
        install.drop_old_names()
    argv = _named(argv)
    if list(argv[:1]) == UNHANG:
        _be_unhang(argv)
    _inject()
    if list(argv[:2]) == _LAUNCHER:
        _be_forkrun(argv, dict(os.environ))
    if install is not None:
        sys.modules["_unhang_inside.recorder.announce"].announce_at_import()
    _be_python(argv)


def _be_python(argv: Sequence[str]) -> NoReturn:
    from tests.ranks import forkrun

    words = list(argv[2:] if argv[1] == "-u" else argv[1:])
    if words[:2] == _TORCHRUN:
        _be_torchrun(words[1], words[2:])
    forkrun.be_script(words[0], words[1:])


def _be_torchrun(name: str, arguments: Sequence[str]) -> NoReturn:
    sys.argv, code = [name, *arguments], 0
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _end_with(code)


def _inject() -> None:
    """Makes ready the faults of `unhang inject`, as its `sitecustomize` does where torch is about to be imported."""
    if "UNHANG_INJECT" in os.environ:
        bootstrap = SourceFileLoader("inject_bootstrap", str(INJECT)).load_module()
        sys.meta_path.insert(0, bootstrap._Finder())
        bootstrap._start()
        torch = sys.modules["torch"]
        torch.save, torch.load = (
            torch.serialization.save,
            torch.serialization.load,
        )  # torch names them when it is imported
