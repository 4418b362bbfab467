"""`with unhang.process_group():` an initialisation that cannot be got wrong, and an end that never hangs."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from unhang.errors import PeerFailed
from unhang.guard import ending, identity, job
from unhang.guard.board import Board, Watcher
from unhang.guard.durations import Duration, seconds_of
from unhang.guard.telling import tell

TIMEOUT_VARIABLE = "UNHANG_PG_TIMEOUT"
DEFAULT_TIMEOUT_S = 600.0
DESTROY_LIMIT_S = 10.0
# A rank whose main thread does not come back by itself after a peer failed is ended this much later.
GRACE_S = 3.0
_ECHO_WAIT_S = 1.5
_SETTINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@contextmanager
def process_group(
    backend: str | None = None,
    timeout: Duration | None = None,
    device: Any = None,
    *,
    config: object = None,
    check_mapping: bool = True,
    **more: Any,
) -> Iterator[job.Job]:
    """Initialises torch.distributed for the body, and ends it whatever happens there.

    Every group that is made inside has the same timeout. Before the first collective all ranks compare device, world
    size, code, configuration and versions. If a rank raises, the others stop within seconds and say which rank and why.

    Blocks: at the start until all ranks have come, up to `timeout`; at a normal end until all ranks are done, up to
    `timeout`, and up to DESTROY_LIMIT_S for the groups; after a failure for the latter only.

    Args:
        backend: as in `init_process_group`; by default nccl with a CUDA device, else gloo.
        timeout: of this and every later group, in seconds or as "10m"; UNHANG_PG_TIMEOUT goes before it; default 10 minutes.
        device: of this rank; by default `cuda:LOCAL_RANK` where there are CUDA devices.
        config: anything that must be equal on all ranks (compared by its JSON text).
        check_mapping: compare the ranks; about 10 ms for each 100 ranks, once.
        more: further arguments of `init_process_group`.

    Raises:
        RanksDiffer: the ranks are not set up alike (on every rank).
        PeerFailed: another rank failed first.
    """
    import torch.distributed as dist

    limit_s = seconds_of(os.environ.get(TIMEOUT_VARIABLE) or (DEFAULT_TIMEOUT_S if timeout is None else timeout))
    device = _device(device)
    backend = backend or ("nccl" if getattr(device, "type", "") == "cuda" else "gloo")
    _tell_torch_who_we_are(more)
    if getattr(device, "type", "") == "cuda":
        more.setdefault("device_id", device)
    with _default_timeouts(limit_s):
        dist.init_process_group(backend, timeout=timedelta(seconds=limit_s), **more)
        mine = job.Job(
            dist.get_rank(),
            identity.number_from(identity.LOCAL_RANK) or 0,
            dist.get_world_size(),
            device,
            backend,
            limit_s,
        )
        run = _Run(mine)
        try:
            run.begin(config, check_mapping)
            yield mine
        except BaseException as error:
            run.failed(error)
            raise
        else:
            run.done()
        finally:
            run.end()


class _Run:
    """One use of `process_group`."""

    def __init__(self, mine: job.Job) -> None:
        self._job = mine
        self._board: Board | None = job.board_of(mine.rank, mine.world_size)
        self._watcher: Watcher | None = None
        self._peer: dict[str, Any] | None = None
        self._is_over = threading.Event()
        mine.board = self._board

    def begin(self, config: object, check_mapping: bool) -> None:
        mine = self._job
        job.use(mine)
        settings = {"backend": mine.backend, "timeout_s": mine.timeout_s, "config": identity.digest(config)}
        who = identity.describe(mine.rank, mine.world_size, mine.device, **settings)
        if self._board is None:
            tell(
                "unhang",
                "the store cannot be reached over a connection of its own: failures are not told to the other ranks",
            )
        else:
            self._watcher = Watcher(self._board, self._peer_failed)
            if check_mapping:
                identity.check_mapping(self._board, who, mine.timeout_s)
        _tell_configuration(mine, who)

    def _peer_failed(self, failure: dict[str, Any]) -> None:
        """Called in the watcher's thread: says it, and ends this rank if its main thread does not come back."""
        if failure["rank"] == self._job.rank:
            return
        self._peer = failure
        tell("unhang", f"rank {failure['rank']} failed: {failure['what']}")
        if self._is_over.wait(GRACE_S):
            return
        _abort_nccl()
        if not self._is_over.wait(1.0):
            tell(
                "unhang", f"rank {self._job.rank} still waits for rank {failure['rank']}, which has failed; it ends now"
            )
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(1)

    def failed(self, error: BaseException) -> None:
        """An exception leaves the body: tells the others, or finds that it is the echo of another rank's."""
        if self._board is None or isinstance(error, GeneratorExit):
            return
        what = _in_words(error)
        text = "".join(traceback.format_exception(error))
        if _is_echo(error):
            until = time.monotonic() + _ECHO_WAIT_S
            while self._peer is None and time.monotonic() < until:
                time.sleep(0.05)
        if self._peer is None:
            with suppress(Exception):
                standing = self._board.announce({"rank": self._job.rank, "what": what[:500], "text": text})
                self._peer = standing if standing["rank"] != self._job.rank else None
        if self._peer is not None and _is_echo(error):
            self._is_over.set()
            raise PeerFailed(f"rank {self._peer['rank']} failed: {self._peer['what']}\n{self._peer['text']}") from error

    def done(self) -> None:
        """A normal end: waits for the others, so that none leaves while another still talks to it."""
        if self._board is None:
            return
        with suppress(Exception):
            self._board.put(f"done/{self._job.rank}", time.time())
            # Rank 0 looks after all; the others only wait for its word: one question instead of many.
            if self._job.rank == 0:
                names = [f"done/{r}" for r in range(self._job.world_size)]
                self._board.wait_for(names, self._job.timeout_s)
                self._board.put("all done", True)
            else:
                self._board.wait_for(["all done"], self._job.timeout_s)

    def end(self) -> None:
        """Ends the watcher and the groups."""
        try:
            ending.destroy(DESTROY_LIMIT_S)
        finally:
            self._is_over.set()
            if self._watcher is not None:
                self._watcher.stop()
            job.use(None)


def _in_words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it left with sys.exit({error.code!r}) before the end of the training"
    return f"{type(error).__name__}: {error}"


def _is_echo(error: BaseException) -> bool:
    """Whether an exception says no more than that a peer or the connection to it is gone."""
    text = f"{type(error).__name__}: {error}"
    return any(
        mark in text
        for mark in ("Connection closed by peer", "Connection reset", "Timed out waiting", "DistBackendError", "NCCL error",
                     "Broken pipe", "Socket", "Connection refused", "wait timeout after", "aborted", "Application timeout")
    )  # fmt: skip


def _device(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", (identity.number_from(identity.LOCAL_RANK) or 0) % torch.cuda.device_count())
    return torch.device("cpu")


def _tell_torch_who_we_are(more: dict[str, Any]) -> None:
    """Sets RANK, WORLD_SIZE and LOCAL_RANK from what Slurm or MPI set, where nothing else tells them."""
    if "rank" in more or "init_method" in more or "store" in more:
        return
    for name, sources in (
        ("RANK", identity.RANK),
        ("WORLD_SIZE", identity.WORLD_SIZE),
        ("LOCAL_RANK", identity.LOCAL_RANK),
    ):
        number = identity.number_from(sources)
        if name not in os.environ and number is not None:
            os.environ[name] = str(number)


@contextmanager
def _default_timeouts(limit_s: float) -> Iterator[None]:
    """Groups that a library makes without a timeout get ours: torch reads these two names each time."""
    from torch.distributed import distributed_c10d as c10d

    names = [n for n in ("default_pg_timeout", "default_pg_nccl_timeout") if getattr(c10d, n, None) is not None]
    before = {name: getattr(c10d, name) for name in names}
    for name in names:
        setattr(c10d, name, timedelta(seconds=limit_s))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(c10d, name, value)


def _tell_configuration(mine: job.Job, who: dict[str, Any]) -> None:
    """One block per job, from rank 0, and one line per rank."""
    if mine.rank == 0:
        variables = " ".join(
            f"{name}={'***' if any(s in name for s in _SECRET) else value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(_SETTINGS)
        )
        tell(
            "distributed_init",
            f"world {mine.world_size}, backend {mine.backend}, timeout {mine.timeout_s:.0f} s for every group, torch {who['torch']}, "
            f"code {who['code'] or 'unknown'}, config {who['config']}\nvariables: {variables or 'none'}",
        )
    tell(
        "distributed_init",
        f"rank {mine.rank} local_rank {mine.local_rank} host {who['host']} pid {who['pid']} device {mine.device} "
        f"CUDA_VISIBLE_DEVICES {who['visible'] or 'unset'}",
    )


def _abort_nccl() -> None:
    """Lets a main thread that waits in NCCL come back with an error; other backends have nothing of the kind."""
    from torch.distributed import distributed_c10d as c10d

    abort = getattr(c10d, "_abort_process_group", None)
    if abort is not None and c10d.is_nccl_available() and c10d.is_initialized():
        with suppress(Exception):
            abort()
