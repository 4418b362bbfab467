"""The cases of the rules on the program and its set-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unhang.model import Case, Course, Frame, HangObservation, RankIdentity, Reading
from unhang.model.case import LibraryChange
from unhang.testing import Fires, Quiet, make_case

_AT = Frame("/job/train.py", 12, "step")


def _tensor(layout: str, seq: int = 3, strides: str = "4", op: str = "allreduce", backend: str = "gloo") -> Reading:
    fields: dict[str, Any] = {
        "op": op,
        "group": "0",
        "seq": seq,
        "layout": layout,
        "sizes": "4",
        "strides": strides,
        "backend": backend,
    }
    return Reading("program.tensor", op, fields, at=_AT)


def _loader(**fields: Any) -> Reading:
    whole = {
        "workers": 2,
        "timeout_s": 0.0,
        "batch_size": 4,
        "drop_last": False,
        "sampler": "DistributedSampler",
        "replicas": 2,
        **fields,
    }
    return Reading("program.loader", "", whole, at=_AT)


def _job(
    *facts: tuple[Reading, ...], course: Course | None = None, timeout: float = 600.0, **given: Any
) -> Callable[[], Case]:
    """A job that ended well, with these facts of its ranks."""

    def made() -> Case:
        more = {
            rank: {"facts": tuple(replace(f, rank=rank) for f in of_rank), "steps": 4}
            for rank, of_rank in enumerate(facts)
        }
        more = {rank: fields | given.get("more", {}).get(rank, {}) for rank, fields in more.items()}
        case = make_case({}, world=len(facts), hang=given.get("hang"), exit_code=given.get("exit_code", 0), more=more)
        groups = tuple(replace(g, timeout_s=timeout) for g in case.groups)
        job = replace(case.job, command=given.get("command", ()), environment=given.get("environment", {}))
        return replace(case, groups=groups, job=job, course=course)

    return made


_STANDS = HangObservation("proven", 10.0, 2.0, (0, 1))


def _use(value: float) -> Course:
    return Course(samples={"at_s": (8.0, 10.0, 12.0, 14.0), "device 0 use": (97.0, 97.0, value, value)})


def _variables(names: dict[str, str]) -> dict[int, dict[str, Any]]:
    return {r: {"identity": RankIdentity(r, 2, variables={"OMP_NUM_THREADS": "1", **names})} for r in range(2)}


CASES = {
    "tensor-layout": (
        Fires(_job((_tensor("gaps"),), (_tensor("gaps"),)), (), line=12),
        Fires(_job((_tensor("overlap", strides="0"),), ()), (0,), line=12),
        Fires(_job((_tensor("alias", op="allgather"),), (_tensor("alias", op="allgather"),)), (), line=12),
        Fires(_job((_tensor("permuted", strides="1 x 2"),), ()), (0,), line=12),
        Fires(_job((_tensor("permuted", strides="1 x 2", backend="nccl"),), ()), (0,), line=12),
        Quiet(
            _job((_tensor("permuted", strides="1 x 2"),), (_tensor("permuted", strides="1 x 2"),)),
            "a transposed tensor that is so on all ranks alike: the same elements meet",
        ),
        Quiet(_job((), ()), "a strided tensor in an all_gather: it is copied in order"),
        Quiet(_job((_tensor("gaps", backend="nccl"),), ()), "a strided tensor with NCCL: it raises"),
        Quiet(
            _job((_tensor("permuted", 9),), tuple(_tensor("permuted", n) for n in (1, 2, 3))),
            "a rank of which too little was noted",
        ),
    ),
    "timeout-order": (
        Fires(_job((_loader(timeout_s=600.0),), (_loader(timeout_s=600.0),)), ()),
        Fires(_job((), (), command=("timeout", "-k", "5", "10m", "torchrun", "train.py")), ()),
        Fires(
            _job(
                (),
                (),
                more={
                    0: {
                        "identity": RankIdentity(
                            0, 2, started_ns=10**18, variables={"SLURM_JOB_END_TIME": "1000000300"}
                        )
                    }
                },
            ),
            (),
        ),
        Quiet(_job((_loader(timeout_s=120.0),)), "a loader whose limit is the shorter one"),
        Quiet(_job((_loader(timeout_s=600.0, workers=0),)), "a loader without workers or without a limit"),
        Quiet(_job((_loader(),), ()), "a loader without workers or without a limit"),
        Quiet(_job((), (), command=("timeout", "2h", "torchrun", "train.py")), "a job with time enough"),
    ),
    "left-out-data": (
        Fires(_job(*[(_loader(samples=71, of_rank=35, batches=9),)] * 2), ()),
        Fires(_job(*[(_loader(samples=70, of_rank=35, batches=8, drop_last=True),)] * 2), ()),
        Fires(
            _job(
                *[
                    (
                        _loader(
                            samples=35, base=71, first=35 * r, last=35 * r + 34, of_rank=35, batches=9, replicas=None
                        ),
                    )
                    for r in range(2)
                ]
            ),
            (),
        ),
        Fires(_job((_loader(samples=8, batches=2),), (_loader(samples=8, batches=3),)), ()),
        Quiet(_job(*[(_loader(samples=72, of_rank=36, batches=9, drop_last=True),)] * 2), "a dataset that divides"),
        Quiet(_job(*[(_loader(samples=71, of_rank=36, batches=9),)] * 2), "a sampler that repeats samples instead"),
        Quiet(
            _job(
                *[
                    (
                        _loader(
                            samples=40, base=100, first=40 * r, last=40 * r + 39, of_rank=40, batches=10, replicas=None
                        ),
                    )
                    for r in range(2)
                ]
            ),
            "a split for validation",
        ),
        Quiet(_job((_loader(samples=40, batches=10, replicas=None),), ()), "one rank that has a loader"),
    ),
    "group-by-members": (
        Fires(_job((Reading("program.group", "", {"bound": True, "backend": "nccl"}, at=_AT),), ()), ()),
        Quiet(
            _job((Reading("program.group", "", {"bound": False, "backend": "nccl"}, at=_AT),), ()),
            "a default group that is bound to no device",
        ),
        Quiet(
            _job((Reading("program.group", "", {"bound": True, "backend": "cpu:gloo"}, at=_AT),), ()),
            "gloo, which splits nothing",
        ),
    ),
    "launcher-not-told": (
        Fires(_job((Reading("program.uncaught", "", {"told": False, "file": "absent"}),), ()), ()),
        Quiet(
            _job((Reading("program.uncaught", "", {"told": True, "file": "written"}),), ()),
            "an entry point with @record",
        ),
        Quiet(_job((), ()), "a launcher that keeps no error file"),
    ),
    "settings-lost": (
        Fires(_job((Reading("program.settings", "", {"lost": "NCCL_DEBUG"}),), ()), ()),
        Fires(_job((), (), environment={"NCCL_DEBUG": "INFO"}, more=_variables({})), ()),
        Quiet(
            _job((), (), environment={"NCCL_DEBUG": "INFO"}, more=_variables({"NCCL_DEBUG": "INFO"})),
            "variables that came to the ranks",
        ),
        Quiet(_job((), (), environment={"NCCL_DEBUG": "INFO"}), "ranks that were not seen when they started"),
    ),
    "device-spins": (
        Fires(_job((), (), hang=_STANDS, exit_code=None, course=_use(100.0)), ()),
        Quiet(_job((), (), course=_use(100.0)), "a job that moves"),
        Quiet(_job((), (), hang=_STANDS, exit_code=None, course=_use(3.0)), "devices that are idle in a hang"),
    ),
    "library-changed": (
        Fires(_job((), (), course=Course(changed=(LibraryChange("/env/lib/python3.11", 12.0, ("argparse.py",)),))), ()),
        Quiet(_job((), (), course=Course()), "an environment that stays as it is, or to which something is added"),
    ),
}
