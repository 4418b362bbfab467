"""`with unhang.process_group():` an initialisation that cannot be got wrong, and an end that never hangs."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import ending, identity, job
from unhang.inside.guards.identity import flight_recorder_size
from unhang.inside.guards.peers import DESTROY_LIMIT_S, GRACE_S, Peers
from unhang.inside.guards.words import Duration, in_words, log, seconds_of
from unhang.inside.rank import LOCAL_RANK, RANK, WORLD_SIZE, number_from

TIMEOUT_VARIABLE = "UNHANG_PG_TIMEOUT"
DEFAULT_TIMEOUT_S = 600.0
_SETTINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_")


@contextmanager
def process_group(
    backend: str | None = None,
    timeout: Duration | None = None,
    device: Any = None,
    *,
    config: object = None,
    check_mapping: bool = True,
    grace: Duration = GRACE_S,
    **more: Any,
) -> Iterator[job.Job]:
    """Initialises torch.distributed for the body, and ends it whatever happens there.

    Every group that is made inside has the same timeout. Before the first collective all ranks compare device, world size,
    code, configuration and versions. If a rank raises, is killed or stands still, the others stop soon and say which and why.

    Blocks: until all ranks have come, and at a normal end until all are done, up to `timeout` each; for the end of the
    groups up to DESTROY_LIMIT_S; after a failure up to 20 s in all, usually less than one.

    Args:
        backend: as in `init_process_group`; by default nccl with a CUDA device, else gloo.
        timeout: of this and every later group, in seconds or as "10m"; UNHANG_PG_TIMEOUT goes before it; default 10 minutes.
        device: of this rank; by default `cuda:LOCAL_RANK` where there are CUDA devices.
        config: anything that must be equal on all ranks (compared by its JSON text); settings of a dict are named.
        check_mapping: compare the ranks; about 2 ms for each 100 ranks on rank 0, once.
        grace: a rank that is still in the body this much after another failed (gloo: and closed its connections) is ended, exit code 1.
        more: further arguments of `init_process_group`.

    Raises:
        RanksDiffer: the ranks are not set up alike, or one came to its end where another still makes a call.
        PeerFailed: another rank failed first.
        RuntimeError: there is a process group already, or torch was built without torch.distributed.
        ValueError: `timeout` or `grace` is not a length of time.

    Example:
        ```python
        import unhang

        with unhang.process_group(timeout="10m", config={"lr": 0.1}) as job:
            print(f"rank {job.rank} of {job.world_size} trains on {job.device}")
        ```
    """
    limit_s, grace_s = _limit(timeout), seconds_of(grace)
    dist, chosen = _torch_distributed(), _device(device)
    backend = backend or ("nccl" if chosen.type == "cuda" else "gloo")
    if chosen.type == "cuda" and "nccl" in backend:
        more.setdefault("device_id", chosen)
    more, number = job.prepared(backend, _known_to_torch(more), limit_s)
    with _default_timeouts(limit_s):
        dist.init_process_group(backend, timeout=timedelta(seconds=limit_s), **more)
        use = _Use(chosen, backend, limit_s, grace_s, number)
        try:
            use.begin(config, check_mapping)
            yield use.job
        except BaseException as error:
            use.failed(error)
            raise
        else:
            use.done()
        finally:
            use.end()


def _torch_distributed() -> Any:
    """The module, if a group can be made now.

    Raises:
        RuntimeError: there is a process group already, or torch was built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed; unhang.process_group needs it")
    if dist.is_initialized():
        raise RuntimeError(
            "there is a process group already: unhang.process_group initialises it itself, so use it once, around the "
            "whole training, and without init_process_group"
        )
    return dist


class _Use:
    """One use of `process_group`. A child that is forked inside the body is no rank, and ends nothing."""

    def __init__(self, device: Any, backend: str, limit_s: float, grace_s: float, number: int) -> None:
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        local_rank = number_from(LOCAL_RANK) or 0
        self.job = job.Job(rank, local_rank, size, device, backend, limit_s, group=weakref.ref(dist.group.WORLD))
        self.job.board = job.board_of(rank, size, number)
        if self.job.board is not None:
            job.keep_server(self.job.board)
        self._peers = Peers(self.job, grace_s)

    def begin(self, config: object, check_mapping: bool) -> None:
        """Listens to the others, compares the ranks and logs the configuration; raises only what the comparison finds."""
        mine = self.job
        job.use(mine)
        if mine.board is None:
            log("unhang", "the store takes no connection of our own: failures are not told to the other ranks")
        self._peers.watch()
        self._peers.watch_neighbours()
        ending.end_workers_with_this_process()
        try:
            settings = {"backend": mine.backend, "timeout_s": mine.timeout_s, "config": identity.digest(config)}
            who = identity.describe(mine.rank, mine.world_size, mine.device, **settings)
            if mine.board is not None and check_mapping:
                identity.check_mapping(mine.board, {**who, "settings": identity.settings_of(config)}, mine.timeout_s)
                self._peers.meet_neighbours()
            _log_configuration(mine, who)
        except (RanksDiffer, PeerFailed):
            raise
        except Exception as error:  # noqa: BLE001 - the training does not need it
            log("unhang", f"the ranks could not be compared: {in_words(error)}")

    def failed(self, error: BaseException) -> None:
        if self._is_rank():
            _attempt(lambda: self._peers.failed(error))

    def done(self) -> None:
        if self._is_rank():
            _attempt(self._peers.done)

    def end(self) -> None:
        """Ends the groups, and then the watcher."""
        if not self._is_rank():
            return
        try:
            self.job.end()
            if not self._peers.ends_well:
                ending.abort_nccl()
            _attempt(lambda: ending.destroy(DESTROY_LIMIT_S))
            _attempt(self._peers.part)
        finally:
            _attempt(self._peers.over)
            job.use(None)

    def _is_rank(self) -> bool:
        return self.job.pid == os.getpid()


def _attempt(work: Callable[[], object]) -> None:
    """Nothing of ours raises at the end, except what we know of the other ranks: the training has its result already."""
    try:
        work()
    except (PeerFailed, RanksDiffer):
        raise
    except Exception as error:  # noqa: BLE001
        log("unhang", f"at the end: {in_words(error)}")


def _limit(timeout: Duration | None) -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return seconds_of(DEFAULT_TIMEOUT_S if timeout is None else timeout)
    try:
        return seconds_of(text)
    except ValueError as error:
        raise ValueError(f"{TIMEOUT_VARIABLE}: {error}") from None


def _device(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", (number_from(LOCAL_RANK) or 0) % torch.cuda.device_count())
    return torch.device("cpu")


def _known_to_torch(more: dict[str, Any]) -> dict[str, Any]:
    """Sets RANK, WORLD_SIZE and LOCAL_RANK from what Slurm or MPI set, where they are not set."""
    if "rank" in more or "init_method" in more or "store" in more:
        return more
    for name, sources in (("RANK", RANK), ("WORLD_SIZE", WORLD_SIZE), ("LOCAL_RANK", LOCAL_RANK)):
        number = number_from(sources)
        if name not in os.environ and number is not None:
            os.environ[name] = str(number)
    return more


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


def _log_configuration(mine: job.Job, who: dict[str, Any]) -> None:
    """One block per job, from rank 0, and one line per rank."""
    if mine.rank == 0:
        variables = " ".join(
            f"{name}={'***' if any(s in name for s in identity.SECRET) else value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(_SETTINGS)
        )
        size, warning = flight_recorder_size()
        log(
            "distributed_init",
            f"world {mine.world_size}, backend {mine.backend}, timeout {mine.timeout_s:.0f} s for every group, torch {who['torch']}, "
            f"code {who['code'] or 'unknown'}, config {who['config']}\nvariables: {variables or 'none'}\n{size}",
        )
        if warning:
            log("unhang", f"warning: {warning}")
    log(
        "distributed_init",
        f"rank {mine.rank} local_rank {mine.local_rank} host {who['host']} pid {who['pid']} device {mine.device} "
        f"CUDA_VISIBLE_DEVICES {who['visible'] or 'unset'}",
    )
