"""The side of `unhang check` that never joins a group: it starts the worker, listens, and ends it when it hangs."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from unhang.preflight.collectives.results import CaseResult, Limits, State, Stuck
from unhang.preflight.collectives.suite import DEFAULT_LARGEST_BYTES, Case, make_plan

_PR_SET_PDEATHSIG = 1
_END_WAIT_S = 5.0
_POLL_S = 0.2
_MOST_ERROR_BYTES = 2000
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's place. `store` ("host:port") is a TCPStore server that the caller of rank 0 holds; `prefix` is new in each run."""

    rank: int
    world_size: int
    store: str
    prefix: str
    backend: str = "gloo"
    local_rank: int = 0

    @property
    def device(self) -> str:
        """The type of device whose memory the backend moves."""
        return "cuda" if self.backend == "nccl" else "cpu"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far this rank is: `done` of `total` cases, and the one that it is in. `state` is None while it runs."""

    rank: int
    done: int
    total: int
    name: str
    state: State | None = None


class Worker:
    """The worker process: in a session of its own, dead with us whatever happens, and ended when the block is left.

    The kernel ends it when the *thread* that started it ends, so that must be one that stays.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
                start_new_session=True, preexec_fn=die_with(os.getpid()),
            )  # fmt: skip
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdout
        self._descriptor = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._descriptor, selectors.EVENT_READ)
        self.is_silent = False
        self.pid = self._process.pid

    def lines(self, timeout_s: float) -> list[dict[str, Any]]:
        """What it has said since the last time. `is_silent` is set when it can say no more.

        Blocks: up to `timeout_s`.
        """
        if not self._selector.select(timeout_s):
            return []
        data = os.read(self._descriptor, 1 << 16)
        self.is_silent = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]

    def last_words(self, timeout_s: float) -> str:
        """How it ended, with the last line that it wrote to stderr.

        Blocks: up to `timeout_s`.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        code = self._process.poll()
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), _MOST_ERROR_BYTES, max(size - _MOST_ERROR_BYTES, 0))
        said = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
        return f"{_how_ended(code)}{f', last said: {said[-1]}' if said else ''}"

    def condition(self) -> str:
        """The state that the kernel gives it; "" when it is not there or merely sleeps or runs."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return ""
        return {"T": "its process is stopped", "D": "its process sleeps in the kernel"}.get(state, "")

    def wait_for_end(self, timeout_s: float) -> None:
        """Lets it leave by itself.

        Blocks: up to `timeout_s`.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WAIT_S)
        finally:
            self._selector.close()
            if self._process.stdout:
                self._process.stdout.close()
            self._errors.close()


def die_with(parent: int) -> Callable[[], None]:
    """What a new child does first, so that the kernel ends it with `parent`."""

    def ask() -> None:
        with suppress(AttributeError):
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _how_ended(code: int | None) -> str:
    if code is None:
        return "it closed its output and did not end"
    if code < 0:
        with suppress(ValueError):
            return f"the worker was ended by {signal.Signals(-code).name}"
    return f"the worker exited with code {code}"


class _Run:
    """What has been heard of the worker so far."""

    def __init__(self, member: Member, plan: Sequence[Case], limits: Limits, tell: Callable[[Progress], None]) -> None:
        self.member, self.plan, self.limits, self.tell = member, plan, limits, tell
        self.results: list[CaseResult] = []
        self.is_done = False
        self.moved_at = time.monotonic()
        self._forget()

    def _forget(self) -> None:
        self.entered, self.stuck, self.waiting_for = False, None, ()

    entered: bool
    stuck: Stuck | None
    waiting_for: tuple[int, ...]

    @property
    def at(self) -> int:
        """The number of the case that comes next or is under way."""
        return len(self.results)

    def hear(self, line: dict[str, Any]) -> None:
        """Takes one line of the worker. A line that makes no sense is left out."""
        event, case = line.get("event"), line.get("case")
        if event == "done":
            self.is_done = True
        elif event == "waiting":
            self.waiting_for = tuple(line.get("ranks", ()))
        elif case == self.at and self.at < len(self.plan):
            if event == "start":
                self.entered, self.moved_at = True, time.monotonic()
                self.tell(Progress(self.member.rank, self.at, len(self.plan), self.plan[self.at].name))
            elif event == "stuck":
                with suppress(msgspec.ValidationError):
                    self.stuck = msgspec.convert(line.get("stuck"), Stuck)
            elif event == "end":
                self._take_end({key: value for key, value in line.items() if key not in ("event", "case")})

    def _take_end(self, fields: dict[str, Any]) -> None:
        is_late = time.monotonic() - self.moved_at > self.limit_s
        if is_late and fields.get("state") == State.ERROR and self.entered:
            # It hung, and raises only now that a peer which hung as well has been ended.
            self.add_unfinished(State.HUNG, f"{self.why_late()}, then {fields.get('reason', '')}")
        else:
            self.add(**fields)

    def why_late(self) -> str:
        """What is known of a case that takes too long."""
        words = [f"{'did not end' if self.entered else 'not entered'} within {self.limit_s:g} s"]
        words += [f"waits for ranks {list(self.waiting_for)}"] if self.waiting_for else []
        words += [f"stands at {self.stuck.stack[-1]}"] if self.stuck and self.stuck.stack else []
        return ", ".join(words)

    def add(self, state: State | str, **more: Any) -> None:
        """Notes how the case that is under way went."""
        case = self.plan[self.at]
        fields = {
            "case": self.at, "name": case.name, "op": case.op, "size": case.size, "dtype": case.dtype, "group": case.group,
            "state": state, **more,
        }  # fmt: skip
        result = msgspec.convert(fields, CaseResult)
        self.results.append(result)
        self.moved_at = time.monotonic()
        self._forget()
        self.tell(Progress(self.member.rank, self.at, len(self.plan), case.name, result.state))

    def add_unfinished(self, state: State, reason: str) -> None:
        """Notes that the case under way did not end, and that those behind it were not run."""
        name = self.plan[self.at].name
        self.add(
            state,
            reason=reason,
            entered=self.entered,
            stuck=msgspec.to_builtins(self.stuck),
            waiting_for=self.waiting_for,
        )
        self.add_rest(f"the worker did not get past {name}")

    def add_rest(self, reason: str) -> None:
        """Notes that all further cases were not run."""
        while self.at < len(self.plan):
            self.add(State.NOT_RUN, entered=False, reason=reason)

    @property
    def limit_s(self) -> float:
        """How long the case under way may take."""
        return self.limits.case_s if self.at else self.limits.start_s


def run_collectives(
    member: Member,
    names: Sequence[str] = ("all",),
    largest_bytes: int = DEFAULT_LARGEST_BYTES,
    limits: Limits | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> tuple[CaseResult, ...]:
    """Runs the collectives as this rank in a process of its own; all ranks call it with the same arguments.

    Returns:
        One result for each case of `suite.make_plan`, in its order, whatever happened.

    Blocks: up to `limits.run_s`, and up to `limits.settle_s` and a few seconds to end the worker.

    Raises:
        WrongUsage: a name selects nothing.
    """
    limits = limits or Limits()
    plan = make_plan(member.world_size, names, largest_bytes)
    run = _Run(member, plan, limits, tell)
    run_until = run.moved_at + limits.run_s
    with Worker(_command(member, names, largest_bytes, limits), _environment()) as worker:
        while not run.is_done and not worker.is_silent:
            for line in worker.lines(_POLL_S):
                run.hear(line)
            now = time.monotonic()
            if now > run_until:
                run.add_rest(f"the {limits.run_s:g} s for all collectives were used up")
                return tuple(run.results)
            if now > run.moved_at + run.limit_s + limits.settle_s and not run.is_done:
                condition = worker.condition()
                run.add_unfinished(State.HUNG, run.why_late() + (f", {condition}" if condition else ""))
                return tuple(run.results)
        if run.is_done:
            worker.wait_for_end(limits.case_s + limits.settle_s)
        elif run.at < len(plan):
            run.add_unfinished(State.DIED, worker.last_words(_END_WAIT_S))
    run.add_rest("an earlier case failed")
    return tuple(run.results)


def _command(member: Member, names: Sequence[str], largest_bytes: int, limits: Limits) -> list[str]:
    options = {
        "rank": member.rank, "world": member.world_size, "local-rank": member.local_rank, "largest": largest_bytes,
        "backend": member.backend, "store": member.store, "prefix": member.prefix, "device": member.device,
        "names": ",".join(names), "limit": limits.case_s, "start-limit": limits.start_s,
    }  # fmt: skip
    module = "unhang.preflight.collectives.worker"
    return [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in options.items())]


def _environment() -> dict[str, str]:
    """Ours; torch keeps its record of calls in memory, and writes no dump of its own when we end a hang."""
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    return {**defaults, **os.environ}
