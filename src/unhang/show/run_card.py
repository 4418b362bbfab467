"""How the job was set up: limits and who set them, variables and who changed them, devices, and what unhang switched on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from unhang.model import Case, ProcessGroup
from unhang.model.rank_sets import name_ranks
from unhang.show.paper import duration

_MOST = 12
_QUIET = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
# What `unhang run` sets for each job, or torchrun for each rank.
_OURS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def run_card(case: Case) -> list[tuple[str, str]]:
    """(of what, what), a few lines; none where the job was not recorded."""
    if not any(e.identity.variables or e.identity.variables_at_init for e in case.ranks.values()):
        return []
    return [*_limits(case), *_variables(case), *_devices(case), *_switched_on(case)]


def _limits(case: Case) -> Iterator[tuple[str, str]]:
    said = Counter(_limit(group) for group in case.groups if group.timeout_s)
    for text, count in list(said.items())[:_MOST]:
        yield "Limit", text if count == 1 else f"{text} ({count} groups)"


def _limit(group: ProcessGroup) -> str:
    at = group.timeout_set_at
    who = "torch's default" if at is None else f"set at {Path(at.file).name}:{at.line} in {at.function}"
    return f"{duration(group.timeout_s or 0.0)} for {'the default group' if group.name == '0' else group}, {who}"


def _variables(case: Case) -> Iterator[tuple[str, str]]:
    """What is set for the communication, and by whom: before the job, by the launcher, or by the script."""
    first = [e.identity for e in case.ranks.values() if e.identity.variables_at_init is not None]
    if not first:
        return
    requested, identity = {**case.job.environment, **case.job.added}, first[0]
    at_init = identity.variables_at_init or {}
    for name in [n for n in sorted({*at_init, *identity.variables}) if n not in _OURS][:_MOST]:
        differing = {e.variables_at_init.get(name) for e in first if e.variables_at_init is not None}
        if name in _QUIET and at_init.get(name) == requested.get(name):
            continue
        if len(differing) > 1:
            yield "Variable", f"{name} differs between ranks: {', '.join(sorted(map(str, differing))[:4])}"
        else:
            yield (
                "Variable",
                f"{name}={at_init.get(name, '(removed)')}, {_who(name, at_init, identity.variables, requested, case)}",
            )
    gone = [
        n for n in requested if n.startswith(("NCCL_", "TORCH_NCCL", "GLOO_")) and n not in at_init and n not in _OURS
    ]
    for name in gone[:_MOST]:
        yield "Variable", f"{name}={requested[name]} was set for the job but did not reach the ranks"


def _who(
    name: str, at_init: Mapping[str, str], at_start: Mapping[str, str], requested: Mapping[str, str], case: Case
) -> str:
    if not at_start and name not in requested:
        return "set by the launcher or the program"
    if at_start and at_init.get(name) != at_start.get(name):
        before = f", before it was {at_start[name]}" if name in at_start else ""
        return f"set by the program before it created its first group{before}"
    if name not in requested:
        return "set by the launcher"
    if at_init.get(name) != requested[name]:
        return f"set by the launcher{'' if at_start else ' or the program'}; {requested[name]} was requested"
    return "set by unhang run (--env, --debug-nccl)" if name in case.job.added else "as it was before the job"


def _devices(case: Case) -> Iterator[tuple[str, str]]:
    by_device: dict[tuple[str, int], list[int]] = {}
    for rank, evidence in case.ranks.items():
        if evidence.identity.device is not None:
            by_device.setdefault((evidence.identity.host, evidence.identity.device), []).append(rank)
    if by_device:
        hosts = {host for host, _ in by_device}
        told = [
            f"{name_ranks(tuple(r), 4)} on {f'{host} ' if len(hosts) > 1 else ''}cuda:{d}"
            for (host, d), r in by_device.items()
        ]
        yield "Devices", ", ".join(told[:_MOST])


def _switched_on(case: Case) -> Iterator[tuple[str, str]]:
    identity = next(e.identity for e in case.ranks.values() if e.identity.variables or e.identity.variables_at_init)
    kept = {**identity.variables, **(identity.variables_at_init or {})}.get(_OURS[0])
    if kept:
        asked = _OURS[0] in case.job.environment or _OURS[1] in case.job.environment
        yield (
            "Flight recorder",
            f"the last {kept} calls of each rank, {'as requested' if asked else 'enabled by unhang run for this job'}",
        )
