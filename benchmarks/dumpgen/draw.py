"""Small jobs drawn at random: any mesh, any style, any fault or none, any loss of evidence."""

from __future__ import annotations

import random
from dataclasses import replace

from dumpgen.build import Spec, build
from dumpgen.faults import FAULTS, HEALTHY, NoPlace
from dumpgen.fields import Recording
from dumpgen.job import Job, Loss
from dumpgen.schedule import AXES, Mesh, Style

_WORLDS = (2, 2, 3, 4, 4, 4, 4, 4, 5, 6, 6, 6, 8, 8, 8, 8, 9, 12, 12, 16, 24, 32)
_VERSIONS = ("2.10",) * 8 + ("2.9", "2.9", "2.4", "2.2")
_HEALTHY_SHARE = 0.3


def random_job(seed: int) -> Job:
    """The job of a seed: 2 to 32 ranks, about 20 to 200 entries in the longest dump."""
    rng = random.Random(seed)
    spec = _spec(rng, seed)
    faults = [HEALTHY] if rng.random() < _HEALTHY_SHARE else [*rng.sample(sorted(FAULTS), 3), "missing"]
    for fault in faults:
        try:
            job = build(replace(spec, fault=fault))
        except NoPlace:
            continue
        return replace(job, loss=_loss(rng, job))
    raise AssertionError("a rank can always stop before a call")


def _spec(rng: random.Random, seed: int) -> Spec:
    backend = "gloo" if rng.random() < 0.12 else "nccl"
    version = rng.choice(_VERSIONS) if backend == "nccl" else "2.10"
    knows_groups = backend == "nccl" and version not in ("2.2", "2.0")
    naming = rng.choice(
        ("numbered", "numbered", "hashed", "split", "local") if knows_groups else ("numbered", "hashed")
    )
    mesh = Mesh(_sizes(rng, backend), naming)
    style = Style(
        layers=rng.randint(1, 2),
        microbatches=rng.randint(1, 2),
        hidden=rng.choice((64, 1024)),
        depth=rng.randint(2, 12),
        dtype=rng.choice(("BFloat16", "Float")),
        batched_transfers=rng.random() < 0.5,
        receive_first=rng.random() < 0.5,
        sequence_parallel=rng.random() < 0.5,
        coalesced_gathers=rng.random() < 0.3,
        overlapped=rng.random() < 0.3,
        loss_item=rng.random() < 0.7,
        barrier=rng.random() < 0.3,
        uneven=rng.random() < 0.7,
        backend=backend,
    )
    entries = int(20 * 10 ** rng.random())
    only_active = backend == "nccl" and rng.random() < 0.08
    recording = Recording(
        version=version,
        backend=backend,
        timing=backend == "nccl" and rng.random() < 0.5,
        ring=rng.randint(16, max(17, entries)) if rng.random() < 0.25 else 2000,
        only_active=only_active,
        has_frames=not only_active,
        timeout_ms=1_800_000 if backend == "gloo" else 600_000,
    )
    skew_ns = rng.choice((0, 0, 3_000_000_000))
    return Spec(mesh, style, recording, entries, HEALTHY, seed, rng.random() < 0.6, skew_ns, rng.random() < 0.5)


def _sizes(rng: random.Random, backend: str) -> dict[str, int]:
    """A world divided among the axes at random."""
    left = rng.choice(_WORLDS)
    axes = [a for a in AXES if a != "pp" or backend != "gloo"]
    sizes: dict[str, int] = {}
    for axis in rng.sample(axes, len(axes)):
        divisors = [d for d in range(1, left + 1) if left % d == 0 and d <= 8]
        sizes[axis] = rng.choice(divisors)
        left //= sizes[axis]
    sizes["dp"] = sizes.get("dp", 1) * left
    return sizes


def _loss(rng: random.Random, job: Job) -> Loss:
    """Some files are lost, cut off, or JSON; most jobs lose nothing, and at least one file is whole."""
    lost, json = set(job.loss.lost), frozenset[int]()
    truncated: dict[int, float] = {}
    if rng.random() < 0.12:
        lost.update(rng.sample(range(job.world), min(rng.choice((1, 1, 2)), job.world - 1)))
    if rng.random() < 0.06 and job.truth.culprits:
        lost.add(rng.choice(job.truth.culprits))
    if rng.random() < 0.05:
        truncated[rng.randrange(job.world)] = rng.uniform(0.1, 0.95)
    if rng.random() < 0.08:
        json = frozenset(r for r in range(job.world) if rng.random() < 0.5)
    if len(lost) == job.world:
        lost.discard(min(lost))
    if len(lost | set(truncated)) == job.world:
        truncated.clear()
    return Loss(frozenset(lost), truncated, json)
