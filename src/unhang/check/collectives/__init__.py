"""The area `collectives`: every collective with verified results, its speed, and the speed of each rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from unhang.check.areas import Context
from unhang.check.children import Worker, worker_command
from unhang.check.collectives.merge import (
    CaseTable,
    Reference,
    against,
    blame,
    load_reference,
    merge,
    reference_of,
    save_reference,
    slow_ranks,
)
from unhang.check.collectives.suite import (
    DEFAULT_LARGEST_BYTES,
    Case,
    CaseResult,
    Limits,
    State,
    Stuck,
    as_fields,
    make_plan,
)
from unhang.check.devices import backend_and_device
from unhang.errors import UnhangError
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

# The side of `unhang check` that never joins a group: it starts the worker, listens, and ends it when it hangs.

_END_WAIT_S, _POLL_S = 5.0, 0.2
# torch keeps its record of calls in memory, and writes no dump of its own when we end a hang.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}


@dataclass(frozen=True, slots=True)
class Rendezvous:
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


class _Run:
    """What has been heard of the worker so far."""

    def __init__(
        self, place: Rendezvous, plan: Sequence[Case], limits: Limits, on_progress: Callable[[Progress], None]
    ) -> None:
        self.place, self.plan, self.limits, self.on_progress = place, plan, limits, on_progress
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
                self.on_progress(Progress(self.place.rank, self.at, len(self.plan), self.plan[self.at].name))
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
        fields = {"case": self.at, "name": case.name, "op": case.op, "group": case.group, "state": state, **more}
        result = msgspec.convert(fields, CaseResult)
        self.results.append(result)
        self.moved_at = time.monotonic()
        self._forget()
        self.on_progress(Progress(self.place.rank, self.at, len(self.plan), case.name, result.state))

    def add_unfinished(self, state: State, reason: str) -> None:
        """Notes that the case under way did not end, and that those behind it were not run."""
        name = self.plan[self.at].name
        stuck, waiting_for = msgspec.to_builtins(self.stuck), self.waiting_for
        self.add(state, reason=reason, entered=self.entered, stuck=stuck, waiting_for=waiting_for)
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
    place: Rendezvous,
    names: Sequence[str] = ("all",),
    largest_bytes: int = DEFAULT_LARGEST_BYTES,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> tuple[CaseResult, ...]:
    """Runs the collectives as this rank in a process of its own; all ranks call it with the same arguments.

    Returns:
        One result for each case of `suite.make_plan`, in its order, whatever happened.

    Blocks: up to `limits.run_s`, and up to `limits.settle_s` and a few seconds to end the worker.

    Raises:
        WrongUsage: a name selects nothing.
    """
    limits = limits or Limits()
    plan = make_plan(place.world_size, names, largest_bytes)
    run = _Run(place, plan, limits, on_progress)
    run_until = run.moved_at + limits.run_s
    with Worker(_command(place, names, largest_bytes, limits), {**_DEFAULTS, **os.environ}) as worker:
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


def _command(place: Rendezvous, names: Sequence[str], largest_bytes: int, limits: Limits) -> list[str]:
    options = {
        "rank": place.rank, "world": place.world_size, "local-rank": place.local_rank, "largest": largest_bytes,
        "backend": place.backend, "store": place.store, "prefix": place.prefix, "device": place.device,
        "names": ",".join(names), "limit": limits.case_s, "start-limit": limits.start_s,
    }  # fmt: skip
    return worker_command("cases", options)


SCOPE = "rank"
LIMIT_S = 1.0
_GATHER_LIMIT_S = 60.0
_MOST_REASONS = 4
_ALONE = "one process; --ranks starts some on this machine, torchrun or srun on all nodes"


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """One process has nobody to call with."""
    if context.participants.is_alone:
        yield Unavailable("collectives", _ALONE)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """Runs them on the ranks that came; rank 0 tells what all ranks saw."""
    participants, options = context.participants, context.options
    if participants.is_alone:
        return
    names = options.collectives or ("all",)
    ranks = participants.present
    backend, _ = backend_and_device(context, "collectives")
    own = _run(context, names, ranks, backend)
    results = participants.collect("collectives/results", as_fields(own), 2 * options.case_limit_s + _GATHER_LIMIT_S)
    if participants.member.rank == 0:
        came = ((place, results[rank]) for place, rank in enumerate(ranks) if rank in results)
        by_place = {place: msgspec.convert(result, tuple[CaseResult, ...]) for place, result in came}
        yield from _readings(by_place, ranks, backend)
        yield from _compared(reference_of(by_place, len(ranks)), context)


def _run(context: Context, names: Sequence[str], ranks: Sequence[int], backend: str) -> tuple[CaseResult, ...]:
    """This rank's part. The ranks that came are numbered anew, so that one that is missing does not keep the others."""
    me = context.member
    place = Rendezvous(
        ranks.index(me.rank), len(ranks), f"{me.address}:{me.port}", f"unhang-check/{me.run_id}/collectives", backend, me.local_rank
    )  # fmt: skip

    def show(progress: Progress) -> None:
        if progress.state is None:
            context.on_progress(f"collectives {progress.done + 1}/{progress.total}: {progress.name}")

    limits = Limits(case_s=context.options.case_limit_s)
    return run_collectives(place, names, context.options.largest_bytes, limits, show)


def _readings(
    by_place: Mapping[int, Sequence[CaseResult]], ranks: Sequence[int], backend: str
) -> Iterator[Reading | Unavailable]:
    tables = merge(by_place, len(ranks))
    counts = {state: sum(t.verdict is state for t in tables) for state in State}
    fields: dict[str, Any] = {f"cases_{state.value}": n for state, n in counts.items() if n}
    yield Reading("collectives.suite", backend, {"ranks": len(ranks), "cases": len(tables), **fields})
    yield from (_failure(table, ranks) for table in tables if table.is_failure)
    for table in tables:
        if table.verdict is State.SKIPPED:
            yield Unavailable(f"collectives.{table.name}", next(iter(table.reasons.values()), "refused"))
    for one in blame(tables):
        who = [ranks[place] for place in one.ranks]
        shown: dict[str, Value] = {"ranks": " ".join(map(str, who)), "because": one.because, "cases": len(one.cases)}
        yield from (Reading("collectives.blame", tables[one.cases[0]].name, shown, rank) for rank in who)
    for slow in slow_ranks(by_place):
        figures = {"median_s": slow.median_s, "others_s": slow.others_s, "ratio": round(slow.ratio, 2)}
        yield Reading("collectives.slow_rank", "compute_speed", figures, ranks[slow.rank])


def _failure(table: CaseTable, ranks: Sequence[int]) -> Reading:
    """A case that failed, with what some of the ranks said."""
    said = [f"rank {ranks[place]}: {reason}" for place, reason in list(table.reasons.items())[:_MOST_REASONS]]
    fields = {"verdict": table.verdict.value, "group": table.group, "because": table.because, "said": "; ".join(said)}
    return Reading("collectives.failure", table.name, fields)


def _compared(now: Reference, context: Context) -> Iterator[Reading | Unavailable]:
    """The figures, and how they stand against those of an earlier run."""
    options = context.options
    for name, figures in now.figures.items():
        shown = {"median_s": figures.median_s, "mad_s": figures.mad_s, "busbw_gbps": figures.busbw_gbps}
        yield Reading("collectives.figure", name, shown)
    try:
        if options.save_reference:
            save_reference(options.save_reference, now)
        for ratio in against(now, load_reference(options.reference)) if options.reference else ():
            shown = {"now_s": ratio.now_s, "before_s": ratio.before_s, "ratio": round(ratio.ratio, 2)}
            yield Reading("collectives.ratio", ratio.name, {**shown, "is_slower": ratio.is_slower})
    except (UnhangError, OSError) as error:
        yield Unavailable("collectives.ratio", str(error))
    else:
        if not options.reference:
            yield Unavailable("collectives.ratio", "no --reference was given")
