"""What goes wrong in a job, and what may be said of it: the ranks at fault, and whether dumps can tell them at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ncclsim.device import Machine, Trouble
from ncclsim.program import Mesh, Step, Style


class NoPlace(Exception):
    """The job has no call at which this fault can be, or it did no harm."""


@dataclass(frozen=True)
class Truth:
    """`culprits`: empty where nobody may be named. `tells`: whether the dumps can tell them. `group`: where it stands."""

    kind: str
    culprits: tuple[int, ...] = ()
    tells: bool = True
    group: str = ""


@dataclass
class Scene:
    """A job before it runs. Faults change programs and add trouble.

    `frozen_ns`: rank -> from when on its watchdogs note nothing. `raises`: ranks whose devices answer queries with an error.
    `no_dump`, `no_frames`: ranks that leave no dump, or one without stacks.
    """

    mesh: Mesh
    style: Style
    rng: random.Random
    programs: list[list[Step]]
    begins: list[list[int]]
    timing: bool
    trouble: Trouble = field(default_factory=Trouble)
    truth: Truth = field(default_factory=lambda: Truth("healthy"))
    frozen_ns: dict[int, int] = field(default_factory=dict)
    raises: set[int] = field(default_factory=set)
    no_dump: set[int] = field(default_factory=set)
    no_frames: set[int] = field(default_factory=set)

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.style.world

    @property
    def run_ahead(self) -> list[int]:
        """How many calls each host may be ahead of its device."""
        more = random.Random(self.style.run_ahead)
        spread = self.style.run_ahead_spread
        return [self.style.run_ahead + more.randint(0, spread) for _ in range(self.world)]

    def healthy(self) -> Machine:
        """The job as it runs without any fault."""
        return Machine(self.programs, Trouble(), self.run_ahead, self.style.eager_sends).run()

    def pick(self, fits: Callable[[int, Step], bool] | None = None) -> tuple[int, int]:
        """A rank and a call of its last iteration."""
        for _ in range(60):
            rank = self.rng.randrange(self.world)
            begin = self.begins[rank][-1]
            places = [i for i in range(begin, len(self.programs[rank])) if not fits or fits(i, self.programs[rank][i])]
            if places:
                return rank, self.rng.choice(places)
        raise NoPlace


def _sync(i: int, step: Step) -> bool:
    return not step.is_p2p


def host_in_user_code(scene: Scene) -> None:
    """A host stops between two calls, its Python runs on."""
    rank, i = scene.pick()
    scene.trouble.host_stops[rank] = i
    scene.truth = Truth("host_in_user_code", (rank,), group=scene.programs[rank][i].group.name)


def host_holds_gil(scene: Scene) -> None:
    """The same, and nobody gets the GIL: the dump has no stacks."""
    host_in_user_code(scene)
    rank = scene.truth.culprits[0]
    scene.no_frames.add(rank)
    scene.truth = replace(scene.truth, kind="host_holds_gil")


def rank0_work(scene: Scene) -> None:
    """Rank 0 works alone before a call of everybody (a barrier or the start of an iteration)."""
    calls = scene.programs[0]
    at = [i for i in range(scene.begins[0][-1], len(calls)) if calls[i].op == "barrier"] or [scene.begins[0][-1]]
    scene.trouble.host_stops[0] = at[0]
    scene.truth = Truth("rank0_work", (0,), group=calls[at[0]].group.name)


def missing_call(scene: Scene) -> None:
    """A rank leaves out a call and goes on."""
    rank, i = scene.pick()
    group = scene.programs[rank][i].group.name
    del scene.programs[rank][i]
    scene.truth = Truth("missing_call", (rank,), group=group)


def extra_call(scene: Scene) -> None:
    """A rank makes a call that nobody else makes."""
    rank, i = scene.pick(_sync)
    call = scene.programs[rank][i]
    extra = replace(call, op="all_reduce", numel=1, out_numel=1, dtype="Float", line=777, is_async=False, root=-1)
    scene.programs[rank].insert(i, extra)
    scene.truth = Truth("extra_call", (rank,), group=call.group.name)


def size_mismatch(scene: Scene) -> None:
    """A rank gives another number of elements."""
    rank, i = scene.pick(lambda i, s: not s.is_p2p and s.numel > 1)
    call = scene.programs[rank][i]
    scene.programs[rank][i] = replace(call, numel=call.numel // 2, out_numel=max(1, call.out_numel // 2))
    scene.truth = Truth("size_mismatch", (rank,), group=call.group.name)


def other_order(scene: Scene) -> None:
    """A rank makes two calls of two groups the other way round."""
    for _ in range(60):
        rank, i = scene.pick(_sync)
        steps = scene.programs[rank]
        if i + 1 < len(steps) and steps[i + 1].group is not steps[i].group and not steps[i + 1].is_p2p:
            steps[i], steps[i + 1] = steps[i + 1], steps[i]
            scene.truth = Truth("other_order", (rank,), group=steps[i].group.name)
            return
    raise NoPlace


def one_sided_transfer(scene: Scene) -> None:
    """A rank leaves out a send or a receive, or makes one too many."""
    rank, i = scene.pick(lambda i, s: s.is_p2p and len(s.peers) == 1)
    call = scene.programs[rank][i]
    if scene.rng.random() < 0.5:
        del scene.programs[rank][i]
    else:
        scene.programs[rank].insert(i, replace(call, line=call.line + 50))
    scene.truth = Truth("one_sided_transfer", (rank,), group=call.group.name)


def device_spins(scene: Scene) -> None:
    """A kernel of the compute stream never ends; the host issues on. Told only where starts are recorded."""
    rank, i = scene.pick()
    scene.trouble.spins[rank] = i
    scene.truth = Truth("device_spins", (rank,), scene.timing, scene.programs[rank][i].group.name)


def _device_dies(scene: Scene, kind: str) -> int:
    rank, i = scene.pick(_sync)
    run = scene.healthy().ranks[rank]
    when = run.ready.get(i, 0) + scene.rng.choice((-5_000, 5_000))
    scene.trouble.dies_ns[rank] = when
    scene.trouble.leaves_peers = scene.rng.random() < 0.7
    scene.raises.add(rank)
    scene.truth = Truth(kind, (rank,), group=scene.programs[rank][i].group.name)
    return when


def device_raises(scene: Scene) -> None:
    """A sticky CUDA error: watchdogs note nothing any more, the host fails a few calls later and lives on, or leaves no dump."""
    when = _device_dies(scene, "device_raises")
    rank = scene.truth.culprits[0]
    scene.frozen_ns[rank] = when
    scene.trouble.host_ends_ns[rank] = when + scene.rng.randrange(20_000, 600_000)
    if scene.rng.random() < 0.4:
        scene.no_dump.add(rank)


def device_wedged(scene: Scene) -> None:
    """The device stands still without an error, and so do the watchdogs; the host issues until its queue is full."""
    when = _device_dies(scene, "device_wedged")
    scene.frozen_ns[scene.truth.culprits[0]] = when


def rank_killed(scene: Scene) -> None:
    """A process is killed: no dump."""
    rank, i = scene.pick()
    when = scene.healthy().ranks[rank].issued[i]
    scene.trouble.dies_ns[rank] = scene.trouble.host_ends_ns[rank] = when
    scene.no_dump.add(rank)
    scene.truth = Truth("rank_killed", (rank,), group=scene.programs[rank][i].group.name)


def watchdog_frozen(scene: Scene) -> None:
    """A host stops; the watchdogs of another, innocent rank had stopped before, while its device ran on."""
    host_in_user_code(scene)
    run = scene.healthy()
    others = [r for r in range(scene.world) if r != scene.truth.culprits[0]]
    for rank in scene.rng.sample(others, scene.rng.choice((1, 1, 2))):
        issued = run.ranks[rank].issued
        scene.frozen_ns[rank] = issued[scene.rng.randrange(len(issued) // 3, len(issued))]
    scene.truth = replace(scene.truth, kind="watchdog_frozen")


def symmetric_wedge(scene: Scene) -> None:
    """All members of a group come to a call, and it is never done: the network, or nobody knows."""
    rank, i = scene.pick(_sync)
    key = scene.healthy().ranks[rank].keys[i][0]
    scene.trouble.wedged.add(key)
    scene.truth = Truth("symmetric_wedge", (), group=scene.programs[rank][i].group.name)


def healthy(scene: Scene) -> None:
    """Dumps of a job that runs."""


FAULTS: dict[str, Callable[[Scene], None]] = {
    f.__name__: f
    for f in (
        healthy, host_in_user_code, host_holds_gil, rank0_work, missing_call, extra_call, size_mismatch, other_order,
        one_sided_transfer, device_spins, device_raises, device_wedged, rank_killed, watchdog_frozen, symmetric_wedge,
    )
}  # fmt: skip
