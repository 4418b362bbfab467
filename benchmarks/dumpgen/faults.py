"""Faults that are put into one job: each changes the program of a rank, or disturbs its host, its device or the network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dumpgen.schedule import UNEVEN_OPS, Mesh, Part, Program, ProgramWriter, Step, Style, frames_at
from dumpgen.simulate import Disturbance, Plan

HEALTHY, SLOW, NETWORK_STALL, CRASHED = "healthy", "slow", "network_stall", "crashed"
SLOW_NS = 20_000_000


class NoPlace(Exception):
    """The job has no call at which this fault can be."""


@dataclass(frozen=True)
class Placed:
    """A fault at its place. `step` is its index in the culprit's program of the last stretch, `call` the call meant.

    `own`: the culprit's differing call, where there is one.
    """

    kind: str
    culprits: tuple[int, ...]
    step: int
    call: Step
    own: Step | None = None


@dataclass
class Scene:
    """The programs of the last stretch, which faults change. `iteration`: length of the first iteration for each rank."""

    mesh: Mesh
    style: Style
    rng: random.Random
    programs: list[Program]
    iteration: list[int]
    disturbance: Disturbance = field(default_factory=Disturbance)
    placed: list[Placed] = field(default_factory=list)
    avoid: set[int] = field(default_factory=set)

    def pick(self, is_fit: Callable[[int, int, Step], bool], most: int = 40) -> tuple[int, int]:
        """A rank and a step of its first iteration that fit.

        Raises:
            NoPlace: none was found.
        """
        for _ in range(most):
            rank = self.rng.randrange(self.mesh.world)
            if rank in self.avoid:
                continue
            program = self.programs[rank]
            fit = [i for i in range(self.iteration[rank]) if is_fit(rank, i, program[i])]
            if fit:
                return rank, self.rng.choice(fit)
        raise NoPlace

    def change(self, kind: str, rank: int, step: int, program: Program, own: Step | None) -> None:
        """Gives a rank a program of its own that differs from `step` on."""
        call = self.programs[rank][step]
        self.programs[rank] = program
        self.placed.append(Placed(kind, (rank,), step, call, own))


def _any(rank: int, i: int, step: Step) -> bool:
    return True


def _collective(rank: int, i: int, step: Step) -> bool:
    return not step.is_p2p


def _sized(rank: int, i: int, step: Step) -> bool:
    return not step.is_p2p and step.op not in UNEVEN_OPS and "barrier" not in step.op


def missing(scene: Scene) -> None:
    """A rank's host stops before a call."""
    rank, i = scene.pick(_any)
    scene.disturbance.host_stops[rank] = i
    scene.placed.append(Placed("missing", (rank,), i, scene.programs[rank][i]))


def crashed(scene: Scene) -> None:
    """A rank dies before a call and leaves no dump."""
    missing(scene)
    scene.placed[-1] = replace(scene.placed[-1], kind=CRASHED)


def skip(scene: Scene) -> None:
    """A rank leaves one collective out and goes on."""
    _leave_out(scene, "skip", _collective)


def unmatched(scene: Scene) -> None:
    """A rank never posts its side of a transfer, and goes on."""
    _leave_out(scene, "unmatched", lambda rank, i, step: step.is_p2p and len(step.parts) == 1)


def _leave_out(scene: Scene, kind: str, is_fit: Callable[[int, int, Step], bool]) -> None:
    rank, i = scene.pick(is_fit)
    program = scene.programs[rank]
    scene.change(kind, rank, i, program[:i] + program[i + 1 :], None)


def extra(scene: Scene) -> None:
    """A rank makes one collective more, from another line."""
    rank, i = scene.pick(_collective)
    program = scene.programs[rank]
    frames = frames_at(program[i].op, "save_metrics", 515, scene.style.depth, program[i].thread)
    own = replace(program[i], frames=frames)
    scene.change("extra", rank, i, [*program[:i], own, *program[i:]], own)


def other_op(scene: Scene) -> None:
    """A rank calls another collective than its peers."""
    _differ(scene, "op", lambda step: step.changed(op="broadcast"))


def other_size(scene: Scene) -> None:
    """A rank comes with a tensor of another size."""

    def larger(step: Step) -> Step:
        part = step.parts[0]
        given, made = (tuple((s[0] + 1, *s[1:]) for s in sizes) for sizes in (part.in_sizes, part.out_sizes))
        return step.changed(in_sizes=given, out_sizes=made)

    _differ(scene, "size", larger)


def other_dtype(scene: Scene) -> None:
    """A rank comes with a tensor of another dtype."""
    _differ(scene, "dtype", lambda step: step.changed(dtype="Float" if step.parts[0].dtype != "Float" else "Half"))


def _differ(scene: Scene, kind: str, changed: Callable[[Step], Step]) -> None:
    rank, i = scene.pick(_sized)
    program = scene.programs[rank]
    own = changed(program[i])
    scene.change(kind, rank, i, [*program[:i], own, *program[i + 1 :]], own)


def order_across(scene: Scene) -> None:
    """A rank makes a call of the world before a call of another group that comes first on its peers: a cycle."""

    def fits(rank: int, i: int, step: Step) -> bool:
        program = scene.programs[rank]
        following = program[i + 1] if i + 1 < scene.iteration[rank] else None
        return (
            not step.is_p2p
            and step.waits
            and step.axis != "world"
            and following is not None
            and following.axis == "world"
        )

    rank, i = scene.pick(fits)
    program = scene.programs[rank]
    scene.change("order_across", rank, i, [*program[:i], program[i + 1], program[i], *program[i + 2 :]], program[i + 1])


def order_within(scene: Scene) -> None:
    """A rank makes two different calls of one group in the other order."""

    def following(rank: int, i: int) -> int | None:
        program = scene.programs[rank]
        end = scene.iteration[rank]
        return next(
            (j for j in range(i + 1, end) if program[j].axis == program[i].axis and not program[j].is_p2p), None
        )

    def fits(rank: int, i: int, step: Step) -> bool:
        j = following(rank, i)
        if step.is_p2p or j is None:
            return False
        two = Plan([step, scene.programs[rank][j]]).signatures
        return two[0] != two[1]

    rank, i = scene.pick(fits)
    j = following(rank, i)
    assert j is not None
    program = list(scene.programs[rank])
    program[i], program[j] = program[j], program[i]
    scene.change("order_within", rank, i, program, program[i])


def wrong_peer(scene: Scene) -> None:
    """A rank sends to, or receives from, another rank than the one that waits for it."""

    def fits(rank: int, i: int, step: Step) -> bool:
        return step.is_p2p and len(step.parts) == 1 and scene.mesh.sizes[step.axis] > 2

    rank, i = scene.pick(fits)
    program = scene.programs[rank]
    step, me = program[i], scene.mesh.places[rank][program[i].axis]
    others = [p for p in range(scene.mesh.sizes[step.axis]) if p not in (me, step.parts[0].peer)]
    own = step.changed(peer=scene.rng.choice(others))
    scene.change("wrong_peer", rank, i, [*program[:i], own, *program[i + 1 :]], own)


def p2p_cycle(scene: Scene) -> None:
    """Two neighbours of a pipeline exchange something, and both receive first."""
    rank, i = scene.pick(lambda rank, i, step: step.is_p2p and step.axis == "pp")
    group = scene.mesh.groups_of[rank]["pp"]
    other = group.ranks[scene.programs[rank][i].parts[0].peer]
    pair = tuple(sorted((rank, other)))
    for mine, theirs in (pair, pair[::-1]):
        program, peer = scene.programs[mine], scene.mesh.places[theirs]["pp"]
        parts = [Part(op, ((64,),), ((64,),), "Float", peer) for op in ("recv", "send")]
        steps = [
            Step("pp", (p,), frames_at(p.op, "exchange_stats", 610 + 3 * k, scene.style.depth, ""))
            for k, p in enumerate(parts)
        ]
        scene.programs[mine] = [*steps, *program]
    first = scene.programs[rank][0]
    scene.placed.append(Placed("p2p_cycle", pair, 0, first, first))


def device_stall(scene: Scene) -> None:
    """A rank keeps issuing, and its device executes nothing any more."""
    rank, i = scene.pick(_any)
    scene.disturbance.dead_devices[rank] = i
    scene.placed.append(Placed("device_stall", (rank,), i, scene.programs[rank][i]))


def network_stall(scene: Scene) -> None:
    """All members arrive at a call, and it never completes."""
    rank, i = scene.pick(lambda rank, i, step: not step.batched)
    scene.disturbance.cut = rank, i
    scene.placed.append(Placed(NETWORK_STALL, (), i, scene.programs[rank][i]))


def slow(scene: Scene) -> None:
    """A rank is always late; the job makes progress."""
    rank, i = scene.pick(_any)
    scene.disturbance.slow_hosts[rank] = SLOW_NS
    scene.placed.append(Placed(SLOW, (rank,), i, scene.programs[rank][i]))


def uneven_batches(scene: Scene) -> None:
    """One replica has one batch less than the others and goes to the final barrier."""
    rank, _ = scene.pick(_any)
    axis = "dp" if "dp" in scene.mesh.axes else "ep" if "ep" in scene.mesh.axes else None
    places = scene.mesh.places
    culprits = tuple(r for r in range(scene.mesh.world) if axis and places[r][axis] == places[rank][axis]) or (rank,)
    missed = scene.programs[rank][scene.iteration[rank]]
    for r in culprits:
        ending = ProgramWriter(scene.mesh, scene.style, places[r]).final()
        scene.programs[r] = scene.programs[r][: scene.iteration[r]] + ending
    scene.placed.append(Placed("uneven_batches", culprits, scene.iteration[rank], missed, ending[0]))


def two_missing(scene: Scene) -> None:
    """The hosts of two ranks stop independently of each other."""
    missing(scene)
    first, step = scene.placed[-1].culprits[0], scene.placed[-1].step
    near = {r for axis, group in scene.mesh.groups_of[first].items() if axis != "world" for r in group.ranks}
    scene.avoid |= near | {first}
    rank, i = scene.pick(lambda rank, i, s: i == min(step, scene.iteration[rank] - 1))
    scene.disturbance.host_stops[rank] = i
    scene.placed.append(Placed("missing", (rank,), i, scene.programs[rank][i]))


FAULTS: dict[str, Callable[[Scene], None]] = {
    "missing": missing,
    "skip": skip,
    "extra": extra,
    "op": other_op,
    "size": other_size,
    "dtype": other_dtype,
    "order_across": order_across,
    "order_within": order_within,
    "wrong_peer": wrong_peer,
    "unmatched": unmatched,
    "p2p_cycle": p2p_cycle,
    "device_stall": device_stall,
    NETWORK_STALL: network_stall,
    CRASHED: crashed,
    SLOW: slow,
    "two_missing": two_missing,
    "uneven_batches": uneven_batches,
}
