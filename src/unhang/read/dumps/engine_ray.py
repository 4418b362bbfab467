"""Runs `partial(files) -> Shard` as tasks of a Ray cluster, near the dumps, and merges their answers there as a tree."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from types import ModuleType, TracebackType
from typing import Any

from unhang.errors import UnhangError
from unhang.read.dumps import DumpFile, Shard
from unhang.read.dumps.engine import (
    MOST_FILES,
    LocalEngine,
    Progress,
    Task,
    merge_ordered,
    plan,
    run_all,
    unreadable_shard,
)  # fmt: skip

MERGED_AT_ONCE = 8
MOST_IN_FLIGHT = 1000
RETRIES = 2  # of a task whose node or process was lost
LOOK_S = 1.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayEngine:
    """Tasks on a Ray cluster whose nodes have unhang installed and can read the paths of the dumps.

    Within a task the dumps are decoded as by `LocalEngine`, in a process under limits. Use it with `with`: a connection
    that it made is closed at the end. Blocks while it runs.

    Args:
        address: of the cluster ("auto", "ray://host:10001"); by default the one that Ray is connected to or finds, else
            Ray is started on this machine.
        resources: what a task takes besides one CPU, by Ray's names.
        memory_bytes: as of `LocalEngine`.
        timeout_s: as of `LocalEngine`.
        silence_s: how long no task may end before the cluster is given up.
        in_flight: tasks at a time; by default two for each CPU of the cluster.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        resources: Mapping[str, float] | None = None,
        memory_bytes: int = 1 << 30,
        timeout_s: float = 20.0,
        silence_s: float = 300.0,
        in_flight: int | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "num_cpus": 1,
            "resources": dict(resources or {}),
            "max_retries": RETRIES,
            "scheduling_strategy": "SPREAD",
        }
        self._limits = (memory_bytes, timeout_s)
        self._silence_s = silence_s
        self._ray, self._connected = _connect(address)
        self._cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._in_flight = in_flight or min(2 * self._cpus, MOST_IN_FLIGHT)

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._connected:
            with redirect_stdout(sys.stderr):
                self._ray.shutdown()

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = MOST_FILES
    ) -> Iterator[Shard]:
        """The merged shard of all files; one that the cluster could not decode is reported in it.

        Raises:
            UnhangError: the cluster is lost, or no task has ended for long.
        """
        try:
            with redirect_stdout(sys.stderr):  # Ray prints what happens to its processes on the standard output
                merged = self._merged(self._decoded(task, files, progress, most_files))
        except self._ray.exceptions.RayError as error:
            raise UnhangError(f"the Ray cluster failed ({_first_line(error)})") from error
        yield from merged

    def _decoded(self, task: Task, files: Sequence[DumpFile], progress: Progress | None, most_files: int) -> list[Any]:
        """References to the shards, in the order of the plan."""
        shards = plan(files, self._cpus, most_files)
        answers: list[Any] = [None] * len(shards)
        flying: dict[Any, tuple[int, Any]] = {}
        done = begun = 0
        heard = time.monotonic()
        try:
            while begun < len(shards) or flying:
                while begun < len(shards) and len(flying) < self._in_flight:
                    flag, answer = self._submit(task, shards[begun])
                    flying[flag] = (begun, answer)
                    begun += 1
                ended, _ = self._ray.wait(list(flying), timeout=LOOK_S)
                for flag in ended:
                    number, answer = flying.pop(flag)
                    answers[number] = self._lost(flag, shards[number]) or answer
                    done += len(shards[number])
                    if progress is not None:
                        progress(done, len(files))
                heard = time.monotonic() if ended else heard
                if time.monotonic() - heard > self._silence_s:
                    raise UnhangError(
                        f"no task of the Ray cluster has ended for {self._silence_s:g} s; see 'ray status' for what it lacks"
                    )
        finally:
            for flag in flying:
                self._ray.cancel(flag, force=True)
        return answers

    def _submit(self, task: Task, files: Sequence[DumpFile]) -> tuple[Any, Any]:
        remote = self._ray.remote(_decode).options(num_returns=2, **self._options)
        flag, answer = remote.remote(task, files, *self._limits)
        return flag, answer

    def _lost(self, flag: Any, files: Sequence[DumpFile]) -> Any:
        """What stands in for the answer of a task that failed for good; None where it is there."""
        try:
            self._ray.get(flag)
        except self._ray.exceptions.RayError as error:
            reason = f"the Ray task that decoded it failed ({_first_line(error)}); try again, or without Ray"
            return self._ray.put(merge_ordered([unreadable_shard(file, reason) for file in files]))
        return None

    def _merged(self, answers: list[Any]) -> list[Shard]:
        remote = self._ray.remote(_merge).options(**self._options)
        while len(answers) > 1:
            answers = [remote.remote(*answers[i : i + MERGED_AT_ONCE]) for i in range(0, len(answers), MERGED_AT_ONCE)]
        return [_owned(self._ray.get(answer, timeout=self._silence_s)) for answer in answers]


def _decode(task: Task, files: Sequence[DumpFile], memory_bytes: int, timeout_s: float) -> tuple[int, Shard]:
    return len(files), run_all(LocalEngine(1, memory_bytes, timeout_s), task, files)


def _merge(*shards: Shard) -> Shard:
    return merge_ordered(shards)


def _owned(shard: Shard) -> Shard:
    """With columns of our own: Ray's are read-only, and gone with the connection."""
    table = shard.table
    columns, progress = (
        {name: column.copy() for name, column in part.items()} for part in (table.columns, table.progress)
    )
    return replace(shard, table=replace(table, columns=columns, progress=progress))


def _connect(address: str | None) -> tuple[ModuleType, bool]:
    """Ray, and whether the connection is ours to close."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UnhangError("Ray is not installed: pip install 'unhang[ray]'") from error
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UnhangError(f"no Ray cluster can be reached ({_first_line(error)}); check its address") from error
    return ray, True


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
