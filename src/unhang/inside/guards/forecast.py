"""`unhang.check_loader(loader)`: what will go wrong with a data loader, before it does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from threading import get_ident
from typing import Any, NamedTuple

from unhang.inside.guards.job import group_timeout, live_job
from unhang.inside.guards.section import limit_around
from unhang.inside.guards.weighing import Measured, measure, start_method
from unhang.inside.guards.words import Duration, log, seconds_of

MEASURE_LIMIT_S = 5.0
SHARED_MEMORY = "/dev/shm"
# A forecast above this share of what is free is reported: other things need some, too.
_SHARE = 0.8
# Measured with torch 2.13: pipes and queues of the loader and of each worker, in the main process.
_DESCRIPTORS = 2
_DESCRIPTORS_PER_WORKER = 4
# Batches outside of the workers' queues: the one in use, and the next.
_HELD_BATCHES = 2
_LONG_START_S = 10.0
_LARGE_START = 1 << 30


class LoaderFinding(NamedTuple):
    """`what`: timeout, descriptors, shared-memory, start, unpicklable or persistent-workers."""

    what: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.text}; {self.advice}"


class _Machine(NamedTuple):
    """What this machine and this job leave for a loader; None where it is unknown."""

    open_fds: int | None = None
    fd_limit: int | None = None
    shm_free: int | None = None
    local_ranks: int = 1
    sharing: str = "file_descriptor"
    limits: tuple[tuple[str, float], ...] = ()


def check_loader(loader: Any, limit_s: Duration | None = None) -> list[LoaderFinding]:
    """Looks at a DataLoader before it is used: timeouts, descriptors, shared memory, and how its workers start.

    One batch is measured in a child process, so that the dataset itself stays untouched. The findings are logged by the
    first rank of each machine, and returned on all.

    Example:
        import torch
        import unhang

        data = torch.utils.data.TensorDataset(torch.zeros(8, 3))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, timeout=60)
        assert unhang.check_loader(loader) == []

    Args:
        loader: a `torch.utils.data.DataLoader`.
        limit_s: of a step, which the loader must not reach; by default that of the section around this call.

    Raises:
        Nothing: what cannot be looked at is logged, and left out.

    Blocks: up to five seconds, for one batch and, where workers are spawned, the pickling of the dataset.
    """
    try:
        found = list(_findings(loader, limit_s))
    except Exception as error:  # noqa: BLE001 - a look at a loader must not end the training
        log("loader", f"the loader could not be looked at: {type(error).__name__}: {error}")
        return []
    job = live_job()
    if job is None or job.local_rank == 0:
        for finding in found:
            log("loader", str(finding))
    return found


def _findings(loader: Any, limit_s: Duration | None) -> Iterator[LoaderFinding]:
    if not getattr(loader, "num_workers", 0):
        return
    step_limit_s = limit_around(get_ident()) if limit_s is None else seconds_of(limit_s)
    machine = _this_machine(step_limit_s)
    weight = measure(loader, MEASURE_LIMIT_S)
    if weight.problem and weight.tensors is None:
        log("loader", f"a batch could not be measured, so there is no forecast: {weight.problem}")
    yield from _timeouts(float(loader.timeout), machine)
    yield from _descriptors(loader, weight, machine)
    yield from _shared_memory(loader, weight, machine)
    yield from _start(loader, weight)


def _timeouts(timeout_s: float, machine: _Machine) -> Iterator[LoaderFinding]:
    """Of the limits around each other, the innermost must speak first: it knows best what is wrong."""
    limits = list(machine.limits)
    if not timeout_s and limits:
        name, seconds = limits[0]
        yield LoaderFinding(
            "timeout",
            f"loader.timeout is 0, so a stuck worker is waited for until {name} of {seconds:g} s is over",
            f"set DataLoader(timeout={max(1, int(seconds / 2))})",
        )
    if timeout_s:
        limits.insert(0, ("loader.timeout", timeout_s))
    for (inner, inner_s), (outer, outer_s) in pairwise(limits):
        if inner_s >= outer_s:
            yield LoaderFinding(
                "timeout",
                f"{inner} of {inner_s:g} s is not below {outer} of {outer_s:g} s, which speaks first and knows less",
                f"make {inner} shorter than {outer_s:g} s, or {outer} longer than {inner_s:g} s",
            )


def _descriptors(loader: Any, weight: Measured, machine: _Machine) -> Iterator[LoaderFinding]:
    if machine.fd_limit is None or machine.open_fds is None or weight.tensors is None:
        return
    batches = loader.num_workers * (loader.prefetch_factor or 2) + _HELD_BATCHES
    needed = _DESCRIPTORS + _DESCRIPTORS_PER_WORKER * loader.num_workers
    if machine.sharing == "file_descriptor":
        needed += weight.tensors * batches
    if needed + machine.open_fds > _SHARE * machine.fd_limit:
        yield LoaderFinding(
            "descriptors",
            f"{loader.num_workers} workers x {loader.prefetch_factor} batches x {weight.tensors} tensors may need "
            f"{needed} file descriptors besides the {machine.open_fds} that are open; the limit is {machine.fd_limit}",
            "raise it (ulimit -n), return fewer tensors per batch (stack them in collate_fn), or call "
            'torch.multiprocessing.set_sharing_strategy("file_system")',
        )


def _shared_memory(loader: Any, weight: Measured, machine: _Machine) -> Iterator[LoaderFinding]:
    if machine.shm_free is None or not weight.batch_bytes:
        return
    batches = loader.num_workers * (loader.prefetch_factor or 2) + _HELD_BATCHES
    needed = weight.batch_bytes * batches * machine.local_ranks
    if needed > _SHARE * machine.shm_free:
        ranks = f" x {machine.local_ranks} ranks" if machine.local_ranks > 1 else ""
        yield LoaderFinding(
            "shared-memory",
            f"batches of {_size(weight.batch_bytes)} x {loader.num_workers} workers x {loader.prefetch_factor} "
            f"prefetched{ranks} need up to {_size(needed)} of {SHARED_MEMORY}; {_size(machine.shm_free)} are free, and "
            "a worker that gets none is killed by SIGBUS",
            "enlarge it (docker: --shm-size or --ipc=host), or lower num_workers or prefetch_factor",
        )


def _start(loader: Any, weight: Measured) -> Iterator[LoaderFinding]:
    """What it costs to start the workers, and how often it is paid."""
    method = start_method(loader)
    if method == "fork":
        return
    if weight.pickle_problem:
        yield LoaderFinding(
            "unpicklable",
            f"{method} sends the dataset to each worker, and it cannot be pickled: {weight.pickle_problem}",
            "open files, locks and connections in the worker (worker_init_fn, or at the first __getitem__)",
        )
        return
    workers, size = loader.num_workers, (weight.pickled_bytes or 0) + weight.pickled_tensor_bytes
    seconds = weight.pickle_s * workers
    is_endless = weight.pickled_bytes is None or not weight.is_pickled
    if is_endless or size * workers > _LARGE_START or seconds > _LONG_START_S:
        how_long = f"more than {MEASURE_LIMIT_S * 0.8:g} s" if is_endless else f"{weight.pickle_s:.1f} s"
        how_much = f"more than {_size(size)}" if is_endless else _size(size)
        often = "once" if loader.persistent_workers else "at the beginning of every epoch"
        yield LoaderFinding(
            "start",
            f"{method} pickles the dataset into each of {workers} workers, one after the other: {how_much} and {how_long} "
            f"each, {often}; the other ranks wait for the first batch in their first collective, and loader.timeout does "
            "not cover it",
            "keep the data in files (numpy.memmap, arrow) and only their paths in the dataset, or start workers by fork",
        )
    if not loader.persistent_workers:
        yield LoaderFinding(
            "persistent-workers",
            f"{method} starts {workers} interpreters that import torch again at the beginning of every epoch",
            "set DataLoader(persistent_workers=True)",
        )


def _this_machine(step_limit_s: float | None) -> _Machine:
    open_fds, fd_limit = descriptors()
    torch_sharing = getattr(sys.modules.get("torch.multiprocessing"), "get_sharing_strategy", lambda: "file_descriptor")
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return _Machine(
        open_fds,
        fd_limit,
        shared_memory_free(),
        int(local) if local.isdecimal() and int(local) else 1,
        torch_sharing(),
        tuple(_limits(step_limit_s, os.environ)),
    )


def descriptors() -> tuple[int | None, int | None]:
    """Open file descriptors of this process, and how many it may have; None where there is no limit or no /proc."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return len(os.listdir("/proc/self/fd")), None if limit == resource.RLIM_INFINITY else limit
    except OSError:
        return None, limit


def shared_memory_free() -> int | None:
    """Free bytes of /dev/shm."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _limits(step_limit_s: float | None, environ: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The limits around a loader, from the inside out, as far as they are known."""
    if step_limit_s is not None:
        yield "the section's limit", step_limit_s
    timeout = group_timeout("cuda", "cpu")
    if timeout is not None:
        yield "the process group's timeout", timeout.total_seconds()
    ends = environ.get("SLURM_JOB_END_TIME", "")
    if ends.isdecimal() and int(ends) > time.time():
        yield "the rest of the Slurm job's time", int(ends) - time.time()


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"
