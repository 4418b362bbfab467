"""Builds a job: its programs, its past, the simulated stretch with its fault, the moment of the dump, and the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dumpgen.faults import CRASHED, FAULTS, HEALTHY, SLOW, NoPlace, Placed, Scene
from dumpgen.fields import Recording
from dumpgen.job import Job, Loss
from dumpgen.rows import WATCHDOG_NS, Clock, Past, Rows
from dumpgen.schedule import Mesh, Program, ProgramWriter, Style
from dumpgen.simulate import FOREVER, Disturbance, Plan, Timeline, simulate
from dumpgen.truth import truth_of

BEGIN_NS = 1_795_227_000_000_000_000
HANGS_NS, LIVE_NS, BETWEEN_NS = 600_000_000_000, 4_000_000, 2_000_000
RANKS_PER_NODE = 8
TRIES = 6


@dataclass(frozen=True)
class Spec:
    """What job to build. `entries`: about how many the largest program leaves in all; `live`: dumped while it runs."""

    mesh: Mesh
    style: Style = field(default_factory=Style)
    recording: Recording = field(default_factory=Recording)
    entries: int = 2000
    fault: str = HEALTHY
    seed: int = 0
    live: bool = False
    skew_ns: int = 0
    watchdog: bool = False
    loss: Loss = field(default_factory=Loss)


class Programs:
    """The programs of one job: equal places share them."""

    def __init__(self, mesh: Mesh, style: Style) -> None:
        self._plans: dict[tuple[int, ...], Plan] = {}
        self.iterations: list[Program] = []
        self.finals: list[Program] = []
        shared: dict[tuple[int, ...], tuple[Program, Program]] = {}
        for place in mesh.places:
            key = (place.get("pp", 0), place.get("ep", 0), place.get("cp", 0))
            if key not in shared:
                writer = ProgramWriter(mesh, style, place)
                iteration = writer.iteration()
                shared[key] = iteration, iteration + iteration + writer.final()
            self.iterations.append(shared[key][0])
            self.finals.append(shared[key][1])

    def plans(self, programs: Sequence[Program]) -> list[Plan]:
        """Programs made ready for the simulation; equal programs give one plan."""
        made: dict[int, Plan] = {}
        return [made.get(id(p)) or made.setdefault(id(p), Plan(p)) for p in programs]


def build(spec: Spec) -> Job:
    """The job. A fault that has no place or no effect in it is tried elsewhere.

    Raises:
        NoPlace: the fault cannot be in this job.
    """
    programs = Programs(spec.mesh, spec.style)
    past_plans = programs.plans(programs.iterations)
    longest = max(len(Rows(plan.steps).rows) for plan in {id(p): p for p in past_plans}.values())
    iterations = max(0, -(-spec.entries // longest) - 1)
    for attempt in range(TRIES):
        scene = Scene(
            spec.mesh,
            spec.style,
            random.Random(f"{spec.seed} {attempt}"),
            list(programs.finals),
            [len(p) for p in programs.iterations],
        )
        if spec.fault != HEALTHY:
            FAULTS[spec.fault](scene)
        past = _past(spec, past_plans, iterations, scene)
        begin = BEGIN_NS + iterations * past.period_ns
        final = simulate(spec.mesh, programs.plans(scene.programs), begin, scene.disturbance)
        is_hang = spec.fault not in (HEALTHY, SLOW)
        if is_hang and not (final.open_meetings and all(_took_effect(final, p) for p in scene.placed)):
            continue
        return _job(spec, past, past_plans, final, scene, begin)
    raise NoPlace(spec.fault)


def _past(spec: Spec, plans: list[Plan], iterations: int, scene: Scene) -> Past:
    """The iterations before the stretch that is simulated; nothing is simulated where there are none."""
    if not iterations:
        return Past(Timeline(()), 0, 0)
    steady = simulate(spec.mesh, plans, BEGIN_NS, Disturbance(slow_hosts=scene.disturbance.slow_hosts))
    assert not steady.open_meetings, "an iteration without a fault completes"
    return Past(steady, iterations, steady.last_ns - BEGIN_NS + BETWEEN_NS)


def _job(spec: Spec, past: Past, past_plans: list[Plan], final: Timeline, scene: Scene, begin: int) -> Job:
    rng = random.Random(f"{spec.seed} moment")
    until, written = FOREVER, final.last_ns + HANGS_NS
    if spec.fault in (HEALTHY, SLOW):
        written = final.last_ns + LIVE_NS
        if spec.live:
            until = begin + int(rng.uniform(0.05, 0.95) * (final.last_ns - begin))
            written = until + LIVE_NS
    job = Job(spec.mesh, past, past_plans, final, until, written, spec.recording, clocks(spec), loss=spec.loss)
    truth = truth_of(job, scene.placed)
    lost = spec.loss.lost | (set(truth.culprits) if spec.fault == CRASHED else set())
    return replace(job, truth=truth, loss=replace(spec.loss, lost=frozenset(lost)))


def clocks(spec: Spec) -> Callable[[int], Clock]:
    """The clock of each rank: one for each node, and a watchdog of its own."""

    def clock(rank: int) -> Clock:
        node = rank // RANKS_PER_NODE
        skew = (node * 2654435761 + spec.seed) % (2 * spec.skew_ns + 1) - spec.skew_ns
        return Clock(skew, (rank * 40503 * 977) % WATCHDOG_NS if spec.watchdog else None)

    return clock


def _took_effect(final: Timeline, placed: Placed) -> bool:
    """Whether the culprits came as far as their fault: who is stuck before it is a victim of something else."""
    for rank in placed.culprits:
        issued, done, plan = len(final.issued[rank]), final.done[rank], final.plans[rank]
        if issued < placed.step or (placed.own is not None and issued == placed.step):
            return False
        if placed.kind in ("missing", CRASHED) and not all(done[i] for i in range(placed.step) if plan.steps[i].waits):
            return False
    return True
