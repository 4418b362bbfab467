"""Writes flight-recorder dumps of a simulated job, with a fault whose truth is known, and the truth beside them.

Usage: python benchmarks/make_dumps.py OUT --ranks 1024 --entries 2000 --fault missing [--tp 8 --pp 4]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dumpgen.build import Spec, build
from dumpgen.faults import FAULTS, HEALTHY, NoPlace
from dumpgen.fields import Recording
from dumpgen.job import Job, Loss
from dumpgen.schedule import Mesh, Style


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, help="folder for the dumps")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--fault", default="missing", choices=[HEALTHY, *FAULTS])
    for axis in ("tp", "pp", "ep", "cp"):
        parser.add_argument(f"--{axis}", type=int, help="ranks along this axis")
    parser.add_argument("--depth", type=int, default=20, help="frames per call")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrapped", action="store_true", help="the ring buffers have lost the oldest two thirds")
    parser.add_argument("--live", action="store_true", help="dumped while the job runs")
    parser.add_argument("--timing", action="store_true", help="calls show when they started")
    parser.add_argument("--only-active", action="store_true", help="dump only calls that have not completed, no frames")
    parser.add_argument("--batched", action="store_true", help="transfers in coalesced batches")
    parser.add_argument("--lose", default="", help="ranks whose files are lost, such as 3,7")
    parser.add_argument("--format", choices=("pickle", "json"), default="pickle")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--no-world-ranks", action="store_true", help="leave out the list of all ranks in each dump")
    parser.add_argument("--skew-s", type=float, default=0.0, help="how far the clocks of the nodes are apart")
    parser.add_argument("--first-rank", type=int, default=0, help="write the dumps of this and later ranks only")
    parser.add_argument("--last-rank", type=int, help="write the dumps up to this rank only")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser


def mesh_of(given: argparse.Namespace) -> Mesh:
    """The mesh asked for; what is not given is chosen to fit the number of ranks.

    Raises:
        SystemExit: the axes do not divide the ranks.
    """
    sizes = {"ep": given.ep or 1, "cp": given.cp or 1}
    rest = given.ranks // (sizes["ep"] * sizes["cp"])
    for axis, usual in (("tp", 8), ("pp", 4 if given.backend == "nccl" else 1)):
        sizes[axis] = getattr(given, axis) or next(
            n for n in range(min(usual, rest), 0, -1) if (rest % n == 0 and rest // n > 1) or n == 1
        )
        rest //= sizes[axis]
    sizes["dp"] = rest
    mesh = Mesh(sizes)
    if mesh.world != given.ranks:
        raise SystemExit(f"{given.ranks} ranks cannot be divided into {sizes}")
    return mesh


def spec_of(given: argparse.Namespace) -> Spec:
    """The job asked for."""
    ring = given.entries if given.wrapped else max(2000, 2 * given.entries)
    style = Style(
        layers=given.layers,
        microbatches=given.microbatches,
        depth=given.depth,
        backend=given.backend,
        batched_transfers=given.batched,
    )
    recording = Recording(
        backend=given.backend,
        timing=given.timing,
        ring=ring,
        only_active=given.only_active,
        has_frames=not given.only_active,
        lists_world=not given.no_world_ranks,
    )
    loss = Loss(
        lost=frozenset(int(r) for r in given.lose.split(",") if r),
        json=frozenset(range(given.ranks)) if given.format == "json" else frozenset(),
    )
    entries = given.entries * (3 if given.wrapped else 1)
    return Spec(
        mesh_of(given),
        style,
        recording,
        entries,
        given.fault,
        given.seed,
        given.live,
        int(given.skew_s * 1e9),
        loss=loss,
    )


def write_truth(job: Job, path: Path) -> None:
    """Leaves the truth as JSON; `culprits` are those of all faults."""
    told = {"ranks": job.world, "mesh": dict(job.mesh.sizes), "lost": sorted(job.loss.lost), **asdict(job.truth)}
    path.write_text(json.dumps({**told, "culprits": sorted(job.truth.all_culprits)}) + "\n")


def main() -> None:
    """Makes the dumps."""
    parser = options()
    given = parser.parse_args()
    if given.list:
        for name, fault in {HEALTHY: None, **FAULTS}.items():
            print(f"{name:15} {fault.__doc__ if fault else 'Nothing goes wrong.'}")
        return
    if given.out is None:
        parser.error("the folder for the dumps is missing")
    began = time.monotonic()
    gc.disable()  # the simulation makes tens of millions of objects, and no cycles
    try:
        job = build(spec_of(given))
    except NoPlace:
        raise SystemExit(f"this job has no call at which the fault {given.fault!r} could be") from None
    gc.freeze()
    print(f"simulated {job.world} ranks in {time.monotonic() - began:.1f} s", file=sys.stderr)
    shown = [0.0]

    def tell(done: int, of: int) -> None:
        if time.monotonic() - shown[0] > 1 or done == of:
            shown[0] = time.monotonic()
            print(f"\r{done} of {of} dumps", end="\n" if done == of else "", file=sys.stderr, flush=True)

    last = given.ranks - 1 if given.last_rank is None else given.last_rank
    size = job.write_in_parallel(given.out, given.processes, tell, range(given.first_rank, last + 1))
    write_truth(job, given.out.with_name(f"{given.out.name}.truth.json"))
    print(f"{size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
