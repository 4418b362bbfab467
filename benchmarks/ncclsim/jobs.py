"""Small jobs of 16 to 64 ranks drawn at random: any mesh, any style, any fault, any loss of evidence."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncclsim.device import FOREVER, Machine
from ncclsim.faults import FAULTS, NoPlace, Scene, Truth
from ncclsim.program import Mesh, Step, Style, programs
from ncclsim.write import VERSIONS, RankDump, Recording, Sight, entries_of, names_of

_MESHES = ((2, 2, 4), (2, 2, 4), (4, 1, 4), (2, 4, 2), (1, 4, 4), (4, 2, 2), (2, 2, 8), (8, 1, 4), (4, 4, 2), (4, 4, 4))
WAITED_S = 180.0


@dataclass(frozen=True)
class Job:
    """A job that ran, with what is left of it. `quiet_s`: from the last event to the dumps."""

    scene: Scene
    machine: Machine
    recording: Recording
    truth: Truth
    dumped_ns: tuple[int, ...]
    lost: frozenset[int]
    naming: str
    first: tuple[tuple[Step, ...], ...]  # the calls of each rank's first iteration
    clocks_ns: Mapping[int, int] = field(default_factory=dict)  # by how much a rank's clock is ahead

    def dump(self, rank: int) -> RankDump:
        """The dump of a rank."""
        s = self.scene
        sight = Sight(
            self.dumped_ns[rank],
            s.frozen_ns.get(rank, FOREVER),
            rank in s.raises,
            self.recording.has_frames and rank not in s.no_frames,
            self.clocks_ns.get(rank, 0),
        )
        return RankDump(s.mesh, self.machine.ranks[rank], sight, self.recording, self.first[rank])

    @property
    def with_dump(self) -> list[int]:
        """The ranks that left one."""
        return [r for r in range(self.scene.world) if r not in self.lost and r not in self.scene.no_dump]

    def write(self, folder: Path, leave_out: Collection[int] = ()) -> Path:
        """Writes the dumps, with the time of the dump as their modification time."""
        files = [r for r in self.with_dump if r not in leave_out]
        for rank, name in names_of(files, 8, self.naming).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.dump(rank).encoded())
            os.utime(path, ns=(self.dumped_ns[rank],) * 2)
        return folder


def random_job(seed: int, fault: str = "") -> Job:
    """The job of a seed, with a fault of one's choice."""
    for attempt in range(50):
        rng = random.Random(seed * 1009 + attempt)
        kind = fault or rng.choice(sorted(FAULTS))
        style, recording = _style(rng), _recording(rng)
        try:
            return job_of(style, recording, FAULTS[kind], rng)
        except NoPlace:
            continue
    raise AssertionError(f"no place for {kind} in 50 jobs")


def job_of(style: Style, recording: Recording, fault: Callable[[Scene], None], rng: random.Random) -> Job:
    """One job.

    Raises:
        NoPlace: the fault has no place in it, or does no harm.
    """
    mesh = Mesh(style, rng)
    written = list(programs(mesh))
    scene = Scene(mesh, style, rng, [p for p, _ in written], [b for _, b in written], recording.timing)
    fault(scene)
    return _run(scene, recording, rng)


def _run(scene: Scene, recording: Recording, rng: random.Random) -> Job:
    style = scene.style
    machine = Machine(scene.programs, scene.trouble, scene.run_ahead, style.eager_sends).run()
    is_stuck = any(len(r.done) < len(r.issued) for r in machine.ranks)
    if scene.truth.kind != "healthy" and not is_stuck:
        raise NoPlace
    if scene.truth.kind == "healthy":
        begin, end = machine.ranks[0].issued[0], machine.last_ns
        snapshot = begin + int((end - begin) * rng.uniform(0.4, 0.95))
        dumped = tuple(snapshot + rng.randrange(3_000_000) for _ in range(scene.world))
    else:
        end = machine.last_ns + int(WAITED_S * 1e9)
        dumped = tuple(end + rng.randrange(1_500_000_000) for _ in range(scene.world))
    culprits = scene.truth.culprits
    others = [r for r in range(scene.world) if r not in culprits]
    lost = frozenset(rng.sample(others, 1)) if rng.random() < 0.1 else frozenset[int]()
    truth = scene.truth
    if lost and scene.no_dump:
        truth = replace(truth, tells=False)
    if recording.past:
        least = min(entries_of(r.steps[: len(r.issued)]) for r in machine.ranks)
        recording = replace(recording, ring=min(recording.ring, least))
    naming = rng.choice(("nccl", "comm_lib", "host", "folders"))
    first = tuple(tuple(p[: b[1]]) for p, b in zip(scene.programs, scene.begins, strict=True))
    return Job(scene, machine, recording, truth, dumped, lost, naming, first)


def _style(rng: random.Random) -> Style:
    tp, pp, dp = rng.choice(_MESHES)
    return Style(
        tp, pp, dp,
        layers=rng.randint(1, 2),
        microbatches=rng.randint(1, 3) if pp > 1 else 1,
        iterations=rng.randint(2, 4),
        hidden=rng.choice((1024, 4096)),
        is_sequence_parallel=rng.random() < 0.5,
        batches_transfers=rng.random() < 0.5,
        overlaps=rng.random() < 0.7,
        reads_loss=rng.random() < 0.6,
        barrier=rng.random() < 0.5,
        broadcasts_data=rng.random() < 0.7,
        sharded_optimizer=rng.random() < 0.6,
        eager_sends=rng.random() < 0.3,
        compute_ns=rng.choice((1_000_000, 3_000_000, 9_000_000)),
        run_ahead=rng.choice((4, 20, 60)),
    )  # fmt: skip


def _recording(rng: random.Random) -> Recording:
    only_open = rng.random() < 0.3
    return Recording(
        torch=rng.choice(sorted(VERSIONS)),
        timing=rng.random() < 0.25,
        ring=rng.choice((2000, 2000, 2000, 60)),
        past=rng.choice((0, 7, 1200)),
        only_open=only_open,
        as_json=rng.random() < 0.3,
        has_frames=rng.random() < 0.6,
    )
