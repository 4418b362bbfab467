"""A launcher for tests that behaves like torchrun but pays for `import torch` once: it imports torch, then forks the ranks.

    python forkrun.py [--port PORT] [--eager] [--grace SECONDS] [--restarts N [--own-stores]] RANKS SCRIPT ARGS...

As under torchrun the launcher hosts the store, the first failing rank ends the others after a grace period, and the exit
code is that of the first failure. With `--port` rank 0 hosts the store on that port, as under a plain launcher. With
`--eager` the compiler, which optimizers and DDP load and a job without torch.compile never uses, is left out. With `--restarts` all ranks are started
again after a failure, up to N times: as under torchrun in the same store, or with `--own-stores` each time in another one.
A rank ends as an interpreter does: `sys.excepthook`, threads joined, `atexit`, streams flushed. Only the destruction of
objects is left out, because in a forked gloo process it crashes now and then, which would not be the fault under test.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; read when torch is imported
# A TCPStore looks up the name of every client. Without an answering name server that stalls all ranks for 5 s at a time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

import argparse
import atexit
import contextlib
import gc
import importlib
import re
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

gc.disable()  # torch makes many objects that stay
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.utils.data  # noqa: E402

gc.enable()

GRACE_S = 0.5
_POLL_S = 0.02


class NoCompiler(ModuleType):
    """Stands for a part of torch._dynamo in a job that compiles nothing; whoever asks for more than `given` gets the true one."""

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(name)
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if isinstance(sys.modules.get("torch._dynamo"), NoCompiler):
            del sys.modules["torch._dynamo"], torch._dynamo
        return getattr(importlib.import_module(self.__name__), name)


def leave_out_compiler() -> None:
    """Optimizers, DDP and `init_process_group` ask the compiler for this much."""
    sys.modules["torch._dynamo"] = torch._dynamo = NoCompiler(  # type: ignore[assignment]
        "torch._dynamo",
        disable=lambda fn, *_, **__: fn,
        graph_break=lambda: None,
        trace_rules=NoCompiler("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        utils=NoCompiler("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    )


def warm_up_for_any() -> None:
    """Imports what many scripts need and none can tell from its absence."""
    importlib.import_module("torch.distributed.algorithms.join")


def warm_up(script: str, eager: bool) -> None:
    """Imports what the script will need late: any optimizer step pulls in dynamo, 1.3 s in every rank."""
    text = Path(script).read_text()
    if "MultiheadAttention" in text:  # sympy, for the check of a mask
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    if not re.search(r"optim|DistributedDataParallel", text):
        return
    importlib.import_module("torch.distributed.algorithms.join")
    if eager:
        leave_out_compiler()
    else:
        importlib.import_module("torch._dynamo")


def run_script(script: str, arguments: list[str]) -> int:
    """Runs the script as `__main__` and returns its exit code."""
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001
        error.__traceback__ = _from_script(error.__traceback__, script)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _from_script(traceback: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback without the launcher's own frames."""
    first = traceback
    while first is not None and first.tb_frame.f_code.co_filename != script:
        first = first.tb_next
    return first or traceback


def be_rank(rank: int, world_size: int, attempt: int, port_pipe: int, script: str, arguments: list[str]) -> None:
    """The life of a rank, in the forked process. Does not return."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with os.fdopen(port_pipe) as pipe:
        port = pipe.readline().strip()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        TORCHELASTIC_RESTART_COUNT=str(attempt),
    )
    be_script(script, arguments)


def be_script(script: str, arguments: list[str]) -> NoReturn:
    """Runs the script, and ends as an interpreter does."""
    torch.set_num_threads(1)
    code = run_script(script, arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end(pids: dict[int, int]) -> None:
    """Ends the remaining ranks: SIGTERM, then SIGKILL for those that do not go (a stopped process does not)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + 1
        while pids and time.monotonic() < deadline:
            for pid, _ in _ended(pids):
                del pids[pid]
            time.sleep(_POLL_S)


def _ended(pids: dict[int, int]) -> Iterator[tuple[int, int]]:
    for pid in list(pids):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            yield pid, os.waitstatus_to_exitcode(status)


def wait_for(pids: dict[int, int], grace_s: float) -> int:
    """Waits until all ranks (pid -> rank) have ended; returns the exit code of the first that failed."""
    failure, deadline = 0, float("inf")
    while pids and time.monotonic() < deadline:
        for pid, code in _ended(pids):
            rank = pids.pop(pid)
            if code and not failure:
                failure, deadline = code, time.monotonic() + grace_s
                print(f"forkrun: rank {rank} (pid {pid}) ended with exit code {code}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)
    end(pids)
    return failure


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def launch(
    world_size: int,
    port: int | None,
    grace_s: float,
    restarts: int,
    own_stores: bool,
    script: str,
    arguments: list[str],
) -> int:
    """Forks the ranks of all attempts, lets one attempt after the other run, and stays with it."""
    if port is None:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    pipes = [os.pipe() for _ in range(world_size * (restarts + 1))]
    pids: dict[int, int] = {}
    gc.freeze()  # what was imported stays, and need not be looked at in every rank
    sys.stdout.flush()
    for number, (reader, _) in enumerate(pipes):
        pid = os.fork()
        if pid == 0:
            for other_reader, other_writer in pipes:
                os.close(other_writer)
                if other_reader != reader:
                    os.close(other_reader)
            attempt, rank = divmod(number, world_size)
            be_rank(rank, world_size, attempt, reader, script, arguments)
        pids[pid] = number
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    store, code, here = None, 0, dict[int, int]()
    try:
        for attempt in range(restarts + 1):
            # Only now: a store has threads, and threads do not survive a fork.
            if port is None and (store is None or own_stores):
                store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for reader, writer in pipes[attempt * world_size :][:world_size]:
                os.write(writer, f"{port if store is None else store.port}\n".encode())
                os.close(reader)
                os.close(writer)
            here = {pid: number % world_size for pid, number in pids.items() if number // world_size == attempt}
            pids = {pid: number for pid, number in pids.items() if pid not in here}
            code = wait_for(here, grace_s)
            if not code:
                break
        return code
    finally:
        end({**pids, **here})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--grace", type=float, default=GRACE_S)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--own-stores", action="store_true")
    parser.add_argument("ranks", type=int)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        warm_up(given.script, given.eager)
        again = given.restarts, given.own_stores
        code = launch(given.ranks, given.port, given.grace, *again, given.script, given.arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)  # an interpreter takes half a second to take torch apart


if __name__ == "__main__":
    main()
