"""A false accusation is worse than no answer: healthy jobs draw no finding, and one fault draws none on another rank.

Programs are drawn at random and simulated: a rank waits in a call until the members that it needs have issued an equal one
at the same position of the group. Calls of equal op and size pair silently, wherever they come from.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from unhang.analyze.situation import Situation
from unhang.model import Case, PendingCall, ProcessState, Verdict
from unhang.rules.registry import judge
from unhang.testing import ended, make_case, path

START_NS = 1_000_000_000_000
TICK_NS = 1_000_000
WORLD = "0"
# Ops by who waits for whom: everybody for everybody, all for the root, the root for all.
EQUAL, FROM_ROOT, TO_ROOT, UNEVEN = (
    ("all_reduce", "barrier", "all_gather"),
    ("broadcast", "scatter"),
    ("gather",),
    ("all_to_all_single",),
)
OPS = (*EQUAL, *FROM_ROOT, *TO_ROOT, *UNEVEN)


@dataclass(frozen=True)
class Step:
    """What one rank does next. `where` is the path of the call, `before` that of the computation in front of it."""

    kind: str  # call, send, recv, new_group
    where: str
    before: str
    extra: str = ""
    group: str = WORLD
    op: str = ""
    sizes: str = ""
    root: int = -1
    peer: int = -1
    detail: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What the members of a group have to agree on."""
        return self.op, "" if self.op in ("scatter", "gather", *UNEVEN) else self.sizes, self.root

    @property
    def text(self) -> str:
        """The call in the short notation."""
        return f"{self.group}/{self.op}{f'[{self.sizes}]' if self.sizes else ''}@{self.where}"


@dataclass
class Program:
    """A program in the form of its source text, and what each rank does in it."""

    world: int
    groups: dict[str, tuple[int, ...]]
    roots: dict[str, int]
    body: Sequence[Any]
    source: str = ""
    functions: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines: list[str] = []
        waiting = [("main", [("new_group", name) for name in self.groups] + list(self.body))]
        while waiting:
            name, body = waiting.pop(0)
            lines.append(f"def {name}():")
            self.functions[name] = self._write(body, 1, lines, waiting)
        self.source = "\n".join(lines) + "\n"

    def _write(self, body: Sequence[Any], depth: int, lines: list[str], waiting: list[Any]) -> list[Any]:
        done: list[Any] = []
        pad = "    " * depth
        for kind, *rest in body:
            if kind == "loop":
                lines.append(f"{pad}for i in range({rest[0]}):")
                line = len(lines)
                done.append(("loop", line, rest[0], self._write(rest[1], depth + 1, lines, waiting)))
            elif kind == "function":
                name = f"f{len(lines)}"
                lines.append(f"{pad}{name}()")
                waiting.append((name, rest[0]))
                done.append(("function", len(lines), name))
            else:
                lines += [f"{pad}x = compute(x)", f"{pad}if flag:", f"{pad}    extra(x)"]
                lines += [f"{pad}if here:", f"{pad}    issue(x)", f"{pad}else:", f"{pad}    issue(x)"]
                done.append((kind, len(lines), *rest))
        return done

    def trace(self, rank: int) -> list[Step]:
        """Everything that a rank does, in order."""
        return list(self._run(rank, "main", ""))

    def _run(self, rank: int, name: str, above: str) -> Iterator[Step]:
        yield from self._block(rank, self.functions[name], f"{above}{name}:")

    def _block(self, rank: int, body: Sequence[Any], at: str) -> Iterator[Step]:
        for kind, line, *rest in body:
            if kind == "loop":
                for _ in range(rest[0]):
                    yield from self._block(rank, rest[1], at)
            elif kind == "function":
                yield from self._run(rank, rest[0], f"{at}{line}>")
            elif kind == "calls":
                for call in rest[0]:
                    yield from self._call(rank, *call, at, line)
            else:
                yield from self._other(rank, kind, rest, at, line)

    def _call(self, rank: int, group: str, op: str, size: int, at: str, line: int) -> Iterator[Step]:
        ranks = self.members(group)
        if rank not in ranks:
            return
        root = ranks[self.roots.get(group, 0) % len(ranks)] if op in (*FROM_ROOT, *TO_ROOT) else -1
        sizes = "" if op == "barrier" else str(size + rank if op in UNEVEN else size)
        if op == "scatter" and rank != root:
            sizes = ""
        mine = line - 2 if rank == root else line
        yield Step("call", f"{at}{mine}", f"{at}{line - 6}", f"{at}{line - 4}", group, op, sizes, root)

    def _other(self, rank: int, kind: str, rest: Sequence[Any], at: str, line: int) -> Iterator[Step]:
        places = {"where": f"{at}{line}", "before": f"{at}{line - 6}", "extra": f"{at}{line - 4}"}
        if kind == "new_group":
            yield Step(kind, **places, detail=str(list(self.groups[rest[0]])))
        else:
            source, target = rest
            if rank == source:
                yield Step("send", **places, peer=target)
            if rank == target:
                yield Step("recv", **places, peer=source)

    def members(self, group: str) -> tuple[int, ...]:
        """The ranks of a group."""
        return tuple(range(self.world)) if group == WORLD else self.groups[group]


class Simulation:
    """Ranks that issue their steps and wait. `eager`: a call is over as soon as the rank's own part of it is."""

    def __init__(self, program: Program, traces: dict[int, list[Step]], eager: bool) -> None:
        self.program, self.traces, self.eager = program, traces, eager
        self.issued: dict[int, int] = dict.fromkeys(traces, 0)
        self.open: dict[int, bool] = dict.fromkeys(traces, False)
        self.times: dict[int, list[int]] = {r: [] for r in traces}
        self.at: dict[tuple[str, int], dict[int, Step]] = {}
        self.position: dict[int, tuple[str, int]] = {}
        self.counts: dict[tuple[Any, ...], int] = {}
        self.stop: tuple[int, int] | None = None  # (rank, index of the step that it never issues)
        self.slow = -1
        self.now = 0

    def run(self, seed: int, most: int = 100_000) -> Simulation:
        """Lets ranks move in a random order, `most` times or until none can."""
        order = random.Random(seed)
        for _ in range(most):
            able = [r for r in self.traces if self.can_move(r)]
            if not able:
                break
            quick = [r for r in able if r != self.slow or self.open[r]]
            if not quick:
                self.now += 300
            self.now += 1
            self._move(order.choice(quick or able))
        return self

    def settle(self) -> None:
        """Lets every call that can complete be over, without a new one."""
        for rank in self.traces:
            self.open[rank] = self.open[rank] and not self.can_move(rank)

    def can_move(self, rank: int) -> bool:
        """Whether the rank issues a call next, or its call can complete."""
        if self.open[rank]:
            return self._completes(rank, self.traces[rank][self.issued[rank] - 1])
        return self.issued[rank] < len(self.traces[rank]) and self.stop != (rank, self.issued[rank])

    @property
    def is_over(self) -> bool:
        """Whether every rank is done."""
        return all(self.ended(r) for r in self.traces)

    def ended(self, rank: int) -> bool:
        """Whether the rank came to the end of its program."""
        return not self.open[rank] and self.issued[rank] == len(self.traces[rank])

    def _move(self, rank: int) -> None:
        if self.open[rank]:
            self.open[rank] = False
            return
        step = self.traces[rank][self.issued[rank]]
        self.issued[rank] += 1
        self.open[rank] = True
        self.times[rank].append(self.now)
        key = self._key(rank, step)
        self.counts[key] = n = self.counts.get(key, 0) + 1
        self.position[rank] = (step.group, n)
        if step.kind == "call":
            self.at.setdefault((step.group, n), {})[rank] = step

    def _key(self, rank: int, step: Step) -> tuple[Any, ...]:
        return (step.kind, rank, step.group, step.peer)

    def _completes(self, rank: int, step: Step) -> bool:
        n = self.counts[self._key(rank, step)]
        if step.kind == "new_group":
            return all(self.counts.get(("new_group", r, step.group, -1), 0) >= n for r in self.traces)
        if step.kind == "send" and self.eager:
            return True
        if step.kind in ("send", "recv"):
            other = "recv" if step.kind == "send" else "send"
            return self.counts.get((other, step.peer, step.group, rank), 0) >= n
        needed = self.program.members(step.group)
        if self.eager and step.op in FROM_ROOT:
            needed = () if rank == step.root else (step.root,)
        elif self.eager and step.op in TO_ROOT and rank != step.root:
            needed = ()
        there = self.at[step.group, n]
        return all(r in there and there[r].key == step.key for r in needed)

    def case(self, dead: int = -1, keep: int = 10**9, with_paths: bool = True, hang: str | None = None) -> Case:
        """What would be seen of the job now. `keep`: the size of the ring buffer of calls."""
        calls: dict[int, list[str]] = {}
        pending: dict[int, list[PendingCall]] = {}
        created: list[int] = []
        parts: dict[str, dict[int, Any]] = {"stacks": {}, "exits": {}, "states": {}}
        for rank, trace in self.traces.items():
            done, open_ = trace[: self.issued[rank]], self.open[rank]
            calls[rank], pending[rank] = [], []
            for i, (step, tick) in enumerate(zip(done, self.times[rank], strict=True)):
                is_open = open_ and i == len(done) - 1
                if step.kind == "call":
                    text = step.text if with_paths else step.text.split("@")[0]
                    calls[rank].append(text + (" !" if is_open else ""))
                    created.append(START_NS + tick * TICK_NS)
                else:
                    pending[rank].append(_pending(step, done[:i], tick, is_open))
            if self.ended(rank):
                parts["exits"][rank] = ended("exit", 0, at_s=self.now / 1000)
                parts["states"][rank] = ProcessState("gone")
            elif rank == dead:
                parts["exits"][rank] = ended("signal", -9, at_s=self.now / 1000)
                parts["states"][rank] = ProcessState("gone")
            else:
                parts["stacks"][rank] = f"{done[-1].where}>~comm" if open_ else trace[len(done)].before
        case = make_case(
            calls,
            world=self.program.world,
            groups=self.program.groups,
            hang=hang,
            exit_code=0 if self.is_over else None,
            source=self.program.source,
            pending=pending,
            **parts,
        )
        return _cut(case, created, keep)


def _pending(step: Step, before: Sequence[Step], tick: int, is_open: bool) -> PendingCall:
    index = 1 + sum(s.kind == step.kind for s in before)
    start = START_NS + tick * TICK_NS
    peer = step.peer if step.peer >= 0 else None
    return PendingCall(
        step.kind, index, WORLD, peer, start, None if is_open else start + 1000, path(step.where), step.detail
    )


def _cut(case: Case, created: Sequence[int], keep: int) -> Case:
    """The simulated times, and only the last `keep` calls of each rank."""
    table = case.calls
    columns = {**table.columns, "created_ns": np.array(created, dtype=np.int64)}
    rank = table["rank"]
    total = {int(r): int((rank == r).sum()) for r in np.unique(rank)}
    rows = np.array([total[int(r)] - int(i) <= keep for r, i in zip(rank, table["record_id"], strict=True)], dtype=bool)
    wrapped = frozenset(r for r, n in total.items() if n > keep)
    columns = {name: column[rows] for name, column in columns.items()}
    return replace(case, calls=replace(table, columns=columns, wrapped_ranks=wrapped))


@st.composite
def programs(
    draw: st.DrawFn,
    least_world: int = 2,
    subgroups: int = 3,
    ops: Sequence[str] = OPS,
    p2p: bool = True,
    last: Sequence[Any] = (),
) -> Program:
    """A program for 2 to 8 ranks. `last`: what every program does at its end."""
    world = draw(st.integers(least_world, 8))
    members = st.sets(st.integers(0, world - 1), min_size=2, max_size=world).map(lambda g: tuple(sorted(g)))
    groups = {f"g{i}": g for i, g in enumerate(draw(st.lists(members, max_size=subgroups)))}
    names = [WORLD, *groups]
    roots = {name: draw(st.integers(0, 7)) for name in names}
    call = st.tuples(st.sampled_from(names), st.sampled_from(ops), st.sampled_from((4, 8, 64)))
    leaf = st.tuples(st.just("calls"), st.lists(call, min_size=1, max_size=2))
    if p2p:
        leaf = leaf | st.permutations(range(world)).map(lambda p: ("p2p", p[0], p[1]))
    nested = st.recursive(
        leaf,
        lambda inner: (
            st.tuples(st.just("loop"), st.integers(1, 6), st.lists(inner, min_size=1, max_size=3))
            | st.tuples(st.just("function"), st.lists(inner, min_size=1, max_size=3))
        ),
        max_leaves=8,
    )
    program = Program(world, groups, roots, [*draw(st.lists(nested, min_size=1, max_size=4)), *last])
    assume(max(len(program.trace(r)) for r in range(world)) <= 120)
    return program


def simulate(program: Program, eager: bool, faulty: dict[int, list[Step]] | None = None) -> Simulation:
    """The program on its ranks, some of which may do something else."""
    return Simulation(program, {r: program.trace(r) for r in range(program.world)} | (faulty or {}), eager)


def inject(trace: Sequence[Step], fault: str, at: int, op: str, size: str) -> list[Step]:
    """The trace with one fault at step `at`."""
    step = trace[at]
    if fault == "skip":
        return [*trace[:at], *trace[at + 1 :]]
    if fault == "add":
        other = replace(step, where=step.extra, op=op, sizes="" if op == "barrier" else size, root=-1)
        return [*trace[:at], other, *trace[at:]]
    if fault == "reorder":
        return [*trace[:at], trace[at + 1], step, *trace[at + 2 :]]
    if fault == "resize":
        return [*trace[:at], replace(step, sizes="5"), *trace[at + 1 :]]
    return list(trace)  # stop, die: the rank never issues the step


def places_for(program: Program, trace: Sequence[Step], fault: str) -> list[int]:
    """The steps of a rank at which a fault can lie, in groups that have a majority."""

    def fits(i: int) -> bool:
        return i < len(trace) and trace[i].kind == "call" and len(program.members(trace[i].group)) >= 3

    found = [i for i in range(len(trace)) if fits(i)]
    if fault == "resize":
        return [i for i in found if trace[i].key[1]]
    if fault == "reorder":
        return [i for i in found if fits(i + 1) and trace[i].text != trace[i + 1].text]
    return found


SETTINGS = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SEEDS, PLACES = st.integers(0, 2**20), st.integers(0, 200)
# The last strategies leave out `p2p` and add `LAST`; the first of them also `subgroups` and `eager`, where no decision is sure yet.
LAST = (("calls", [(WORLD, "all_gather", 999)]),)


@SETTINGS
@given(programs(), st.booleans(), SEEDS, st.sampled_from((3, 10, 10**9)), st.booleans())
def test_a_healthy_job_that_ended_draws_no_finding(
    program: Program, eager: bool, seed: int, keep: int, with_paths: bool
) -> None:
    simulation = simulate(program, eager).run(seed)
    assert simulation.is_over
    case = simulation.case(keep=keep, with_paths=with_paths)
    diagnosis = judge(case)
    assert diagnosis.findings == ()
    assert not any(o.verdict is Verdict.ERROR for o in diagnosis.outcomes)
    assert Situation(case).proven == ()


@SETTINGS
@given(programs(), st.booleans(), SEEDS, st.integers(0, 200), st.sampled_from((3, 10, 10**9)), st.booleans())
def test_nothing_is_proven_of_a_healthy_job_that_runs(
    program: Program, eager: bool, seed: int, most: int, keep: int, with_paths: bool
) -> None:
    situation = Situation(simulate(program, eager).run(seed, most).case(keep=keep, with_paths=with_paths))
    assert situation.proven == ()
    assert situation.divergence is None


@SETTINGS
@given(programs(p2p=False), st.booleans(), SEEDS, st.integers(0, 200), st.sampled_from((3, 10, 10**9)), st.booleans())
def test_only_a_rank_in_its_own_code_is_named_while_a_healthy_job_runs(
    program: Program, eager: bool, seed: int, most: int, keep: int, with_paths: bool
) -> None:
    simulation = simulate(program, eager).run(seed, most)
    simulation.settle()
    for finding in judge(simulation.case(keep=keep, with_paths=with_paths)).findings:
        assert not any(simulation.open[r] or simulation.ended(r) for r in finding.culprit_ranks)


@SETTINGS
@given(programs(p2p=False), SEEDS, PLACES)
def test_only_the_slow_rank_is_a_straggler(program: Program, seed: int, slow: int) -> None:
    simulation = simulate(program, eager=False)
    simulation.slow = slow % program.world
    for finding in judge(simulation.run(seed).case()).findings:
        assert (finding.cause, finding.culprit_ranks) == ("straggler", (simulation.slow,))


@SETTINGS
@given(
    programs(least_world=3, subgroups=0, p2p=False, last=LAST),
    st.sampled_from(("skip", "add", "reorder", "resize")),
    SEEDS,
    PLACES,
    st.sampled_from(EQUAL),
    st.sampled_from(("4", "8", "16")),
    st.booleans(),
)
def test_no_other_rank_is_named_for_a_rank_that_differs(
    program: Program, fault: str, seed: int, place: int, op: str, size: str, with_paths: bool
) -> None:
    rank = seed % program.world
    trace = program.trace(rank)
    places = places_for(program, trace, fault)
    assume(places)
    faulty = inject(trace, fault, places[place % len(places)], op, size)
    simulation = simulate(program, False, {rank: faulty}).run(seed)
    hang = None if simulation.is_over else "suspected"
    findings = judge(simulation.case(with_paths=with_paths, hang=hang)).findings
    assert [f.culprit_ranks for f in findings[:1]] in ([], [(rank,)])
    assert bool(findings) == (hang is not None)


@SETTINGS
@given(
    programs(least_world=3, p2p=False, last=LAST),
    st.sampled_from(("stop", "die")),
    st.booleans(),
    SEEDS,
    PLACES,
    st.sampled_from((3, 10, 10**9)),
    st.booleans(),
)
def test_no_other_rank_is_named_for_a_rank_that_stops(
    program: Program, fault: str, eager: bool, seed: int, place: int, keep: int, with_paths: bool
) -> None:
    rank = seed % program.world
    places = places_for(program, program.trace(rank), fault)
    simulation = simulate(program, eager)
    simulation.stop = (rank, places[place % len(places)])
    simulation.run(seed)
    dead = rank if fault == "die" else -1
    findings = judge(simulation.case(dead=dead, keep=keep, with_paths=with_paths, hang="suspected")).findings
    assert [f.culprit_ranks for f in findings[:1]] == [(rank,)]
