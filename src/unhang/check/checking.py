"""One check: read by oneself, read together, gather on rank 0, judge with the rules; of the set-up that is there, or of one that is only planned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from unhang.check.areas import AREAS, CannotMeet, CheckOptions, Context, Member, Participants, area, meet, member_from
from unhang.errors import WrongUsage
from unhang.model import (
    Case,
    Diagnosis,
    Job,
    Outcome,
    RankEvidence,
    RankIdentity,
    Reading,
    Unavailable,
    Verdict,
    grouped,
)
from unhang.model.findings import SEVERITIES
from unhang.rules.registry import judge, load_rules

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_COUNTS = {
    "nodes": "nodes",
    "gpus": "gpus of each node; one rank per GPU",
    "ranks": "ranks on each node, where they are not as many as the GPUs",
    "workers": "loader workers of each rank",
    "threads": "threads of each rank (OMP_NUM_THREADS)",
    "prefetch": "batches that each worker loads ahead (prefetch_factor)",
    "cores": "cores of a node",
    "nofile": "descriptors that a process may open (ulimit -n)",
}
_SIZES = {"memory": "memory of a node", "shm": "size of /dev/shm of a node", "batch": "bytes of one batch"}
PLAN_KEYS = {**_COUNTS, **_SIZES}


def parse_plan(text: str) -> dict[str, str]:
    """`nodes=4,gpus=8,shm=64M` as a table.

    Raises:
        WrongUsage: a name that no plan knows, or a value that is not a number.
    """
    plan: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name not in PLAN_KEYS:
            raise WrongUsage(f"--plan knows no {name!r}; it knows {', '.join(PLAN_KEYS)}")
        if amount(value, name in _SIZES) is None:
            raise WrongUsage(f"--plan {part}: {PLAN_KEYS[name]}, as a number" + (" (512M, 64G)" * (name in _SIZES)))
        plan[name] = value
    return plan


def amount(text: str, is_size: bool = True) -> int | None:
    """A whole number above zero, with K, M, G or T behind it where it is a size; None where it is none."""
    digits, unit = text.strip().upper().removesuffix("B").removesuffix("I"), 1
    if is_size and digits[-1:] in _UNITS:
        digits, unit = digits[:-1], _UNITS[digits[-1]]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 16
    return (int(digits) * unit or None) if is_number else None


def setup_of(context: Context) -> Iterator[Reading]:
    """One reading `setup.job`: how many nodes, ranks, workers and threads. Fields of which nothing is known are None."""
    plan = {name: amount(value, name in _SIZES) for name, value in context.options.plan.items()}
    member = context.member
    alone = 1 if member.world_size == 1 else None
    ranks_per_node = plan.get("ranks") or plan.get("gpus") or member.local_world_size or alone
    nodes = plan.get("nodes") or member.nodes
    if not nodes and ranks_per_node:
        nodes = max(1, member.world_size // ranks_per_node)
    yield Reading(
        "setup.job",
        "plan" if plan else "here",
        {
            "nodes": nodes,
            "ranks_per_node": ranks_per_node,
            "world_size": nodes * ranks_per_node if nodes and ranks_per_node else member.world_size,
            "gpus_per_node": plan.get("gpus"),
            "workers": plan.get("workers") or context.options.workers,
            "threads": plan.get("threads") or amount(context.environ.get("OMP_NUM_THREADS", ""), is_size=False),
            "prefetch": plan.get("prefetch"),
            "batch_bytes": plan.get("batch"),
            "cores": plan.get("cores"),
            "memory_bytes": plan.get("memory"),
            "shm_bytes": plan.get("shm"),
            "nofile": plan.get("nofile"),
        },
    )


_GATHER_LIMIT_S = 30.0
_END_LIMIT_S = 60.0
_LEAVE_LIMIT_S = 5.0
_CANNOT_JUDGE = 3
_ON_REQUEST = ("collectives", "links")

Facts = list[Reading | Unavailable]


@dataclass(frozen=True)
class Checked:
    """What a check found. `diagnosis` is None on the ranks for which rank 0 speaks."""

    diagnosis: Diagnosis | None
    case: Case
    exit_code: int
    seconds: float


class _Read(msgspec.Struct):
    """What one rank has read."""

    host: str
    readings: list[Reading]
    absent: list[Unavailable]


def check(options: CheckOptions, environ: Mapping[str, str], on_progress: Callable[[str], None]) -> Checked:
    """Checks this machine, or all machines of the job that this process is a rank of.

    Blocks: as long as the areas' limits allow, which add up to a minute or two; never for ever.
    """
    started = time.monotonic()
    member = member_from(environ)
    participants, found = _met(member, options, on_progress)
    context = Context(participants, options, environ, on_progress)
    found += [*setup_of(context), *_by_oneself(context), *_together(context)]
    read = _gathered(participants, member, found)
    case = _case(participants, read, options)
    diagnosis = judged(case) if participants.is_alone or member.rank == 0 else None
    code = _ended(participants, exit_code(diagnosis, options.fail_on) if diagnosis else _CANNOT_JUDGE)
    # Ranks that did not meet would all say the same: one of each host does.
    speaks = member.rank == 0 or member.is_first_on_host
    return Checked(diagnosis if speaks else None, case, code, time.monotonic() - started)


def chosen(options: CheckOptions) -> tuple[str, ...]:
    """The areas to look at, in their order; what takes long only where it was asked for."""
    if options.areas:
        return tuple(name for name in AREAS if name in options.areas)
    wanted = {"collectives": bool(options.collectives), "links": options.links}
    return tuple(name for name in AREAS if wanted.get(name, name not in _ON_REQUEST))


def judged(case: Case) -> Diagnosis:
    """The verdict of the rules that judge readings. A rule that could not judge is skipped, with the reason: it never passes."""
    rules, broken = load_rules()
    diagnosis = judge(case, [r for r in rules if r.reads], independent=True)
    is_judged = any(o.verdict is Verdict.PASS for o in diagnosis.outcomes) and not diagnosis.findings
    outcome = Outcome.CLEAN if is_judged else Outcome.UNKNOWN
    return replace(diagnosis, outcome=outcome, notes=(*diagnosis.notes, *broken))


def exit_code(diagnosis: Diagnosis, fail_on: str) -> int:
    """1 where a finding is at least as severe as `fail_on`, else what the rules that could judge leave: 0, or 3."""
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if any(f.severity in counted for f in diagnosis.findings):
        return 1
    return 0 if diagnosis.findings else diagnosis.exit_code


def _met(member: Member, options: CheckOptions, on_progress: Callable[[str], None]) -> tuple[Participants, Facts]:
    """The participants, and what there is to say of it."""
    if member.world_size > 1:
        on_progress(f"waiting for {member.world_size} ranks at {member.address}:{member.port}")
    try:
        participants = meet(member, options.join_limit_s)
    except CannotMeet as error:
        place = f"{member.address}:{member.port}"
        is_holder = member.rank == 0 and not member.agent_holds_store
        lost = Reading("party.unreachable", place, {"reason": str(error), "is_holder": is_holder})
        return Participants(member, None, (member.rank,)), [lost]
    if participants.is_alone:
        return participants, [Unavailable("party", "one process; torchrun or srun starts it on all ranks")]
    return participants, []


def _by_oneself(context: Context) -> Facts:
    """What each area's `probe` reads, all at the same time. An area that takes too long keeps what it has read so far."""
    running: list[tuple[str, threading.Thread, Facts, float]] = []
    for name in chosen(context.options):
        module = area(name)
        if module.SCOPE == "host" and not context.member.is_first_on_host:
            continue
        facts: Facts = []
        read = partial(module.probe, context)
        thread = threading.Thread(target=_take, args=(name, read, facts), daemon=True, name=f"check-{name}")
        thread.start()
        running.append((name, thread, facts, time.monotonic() + module.LIMIT_S))
    found: Facts = []
    for name, thread, facts, deadline in running:
        context.on_progress(f"reading {name}")
        thread.join(max(0.0, deadline - time.monotonic()))
        found += list(facts)
        if thread.is_alive():
            found.append(Unavailable(name, f"no answer within {area(name).LIMIT_S:g} s"))
    return found


def _take(name: str, read: Callable[[], Iterable[Reading | Unavailable]], facts: Facts) -> None:
    """Adds facts one by one, so that a failure in the middle loses nothing of what came before."""
    try:
        for fact in read():
            facts.append(fact)
    except Exception as error:  # noqa: BLE001  one area that fails must not cost the others
        facts.append(Unavailable(name, f"could not be read: {type(error).__name__}: {error}"[:300]))


def _together(context: Context) -> Facts:
    """What the ranks can only read by acting together, area after area, in the same order on all ranks."""
    found: Facts = []
    for name in chosen(context.options):
        probe = getattr(area(name), "probe_together", None)
        if probe is not None:
            context.on_progress(f"testing {name}")
            _take(name, partial(probe, context), found)
    return found


def _gathered(participants: Participants, member: Member, found: Facts) -> dict[int, _Read]:
    """What every rank has read, on rank 0; elsewhere and alone only one's own."""
    readings = [f for f in found if isinstance(f, Reading)]
    own = _Read(
        member.host,
        [replace(r, host=r.host or member.host, rank=member.rank if r.rank is None else r.rank) for r in readings],
        [f for f in found if isinstance(f, Unavailable)],
    )
    everyone = participants.collect("read", msgspec.to_builtins(own), _GATHER_LIMIT_S)
    return {rank: msgspec.convert(value, _Read) for rank, value in everyone.items()} or {member.rank: own}


def _case(participants: Participants, read: Mapping[int, _Read], options: CheckOptions) -> Case:
    """All readings as one case. What is missing on every rank alike is said once."""
    member = participants.member
    readings = [reading for rank in sorted(read) for reading in read[rank].readings]
    if not participants.is_alone:
        fields = {"expected": member.world_size, "came": member.world_size - len(participants.absent)}
        readings.append(Reading("party.size", "", fields, host=member.host))
    readings += [
        Reading("party.missing", str(rank), {"reason": reason}, rank, read[rank].host if rank in read else "")
        for rank, reason in sorted(participants.absent.items())
    ]
    ranks = {
        rank: RankEvidence(RankIdentity(rank, member.world_size, host=one.host)) for rank, one in sorted(read.items())
    }
    return Case(
        job=Job(world_size=member.world_size, nodes=member.nodes or len({one.host for one in read.values()}) or 1),
        ranks=ranks,
        readings=tuple(readings),
        present=(*chosen(options), "party", "setup"),
        absent=_absent(read),
    )


def _absent(read: Mapping[int, _Read]) -> tuple[Unavailable, ...]:
    """What could not be read, said once; with the first rank where it was read on others."""
    ranks = grouped(((lack.what, lack.reason), rank) for rank in sorted(read) for lack in read[rank].absent)
    return tuple(
        Unavailable(what, reason if len(on) == len(read) else f"{reason} (rank {on[0]}, {len(on)} of {len(read)})")
        for (what, reason), on in ranks.items()
    )


def _ended(participants: Participants, code: int) -> int:
    """Rank 0's exit code on all ranks. Who holds the store leaves last."""
    shared = participants.share(
        "exit", code if participants.member.rank == 0 or participants.is_alone else None, _END_LIMIT_S
    )
    if not participants.is_alone:
        participants.collect("left", True, _LEAVE_LIMIT_S)
    return shared if isinstance(shared, int) else _CANNOT_JUDGE
