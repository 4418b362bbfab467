"""One check: read by oneself, read together, gather on rank 0, judge with the rules that read such things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from unhang.model import Case, Diagnosis, Job, Outcome, RankEvidence, RankIdentity, Reading, Unavailable, Verdict
from unhang.model.findings import SEVERITIES
from unhang.preflight.areas import AREAS, area
from unhang.preflight.context import CheckOptions, Context
from unhang.preflight.member import Member, member_from
from unhang.preflight.party import CannotMeet, Party, meet
from unhang.preflight.planning import setup_of
from unhang.rules.reading_rule import ReadingRule
from unhang.rules.registry import judge
from unhang.rules.registry_modules import load_rules

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


def check(options: CheckOptions, environ: Mapping[str, str], tell: Callable[[str], None]) -> Checked:
    """Checks this machine, or all machines of the job that this process is a rank of.

    Blocks: as long as the areas' limits allow, which add up to a minute or two; never for ever.
    """
    started = time.monotonic()
    member = member_from(environ)
    party, found = _met(member, options, tell)
    context = Context(member, party, options, environ, tell)
    found += [*setup_of(context), *_by_oneself(context), *_together(context)]
    read = _gathered(party, member, found)
    case = _case(party, read, options)
    diagnosis = judged(case) if party.is_alone or member.rank == 0 else None
    code = _ended(party, exit_code(diagnosis, options.fail_on) if diagnosis else _CANNOT_JUDGE)
    # Ranks that did not meet would all tell the same: one of each host does.
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
    diagnosis = judge(case, [r for r in rules if isinstance(r, ReadingRule)], independent=True)
    is_judged = any(o.verdict is Verdict.PASS for o in diagnosis.outcomes) and not diagnosis.findings
    outcome = Outcome.CLEAN if is_judged else Outcome.UNKNOWN
    return replace(diagnosis, outcome=outcome, notes=(*diagnosis.notes, *broken))


def exit_code(diagnosis: Diagnosis, fail_on: str) -> int:
    """1 where a finding is at least as severe as `fail_on`, else what the rules that could judge leave: 0, or 3."""
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if any(f.severity in counted for f in diagnosis.findings):
        return 1
    return 0 if diagnosis.findings else diagnosis.exit_code


def _met(member: Member, options: CheckOptions, tell: Callable[[str], None]) -> tuple[Party, Facts]:
    """The party, and what there is to say of it."""
    if member.world_size > 1:
        tell(f"waiting for {member.world_size} ranks at {member.address}:{member.port}")
    try:
        party = meet(member, options.join_limit_s)
    except CannotMeet as error:
        place = f"{member.address}:{member.port}"
        is_holder = member.rank == 0 and not member.agent_holds_store
        lost = Reading("party.unreachable", place, {"reason": str(error), "is_holder": is_holder})
        return Party(member, None, (member.rank,)), [lost]
    if party.is_alone:
        return party, [Unavailable("party", "one process; torchrun or srun starts it on all ranks")]
    return party, []


def _by_oneself(context: Context) -> Facts:
    """What each area's `probe` reads, all at the same time. An area that takes too long keeps what it has read so far."""
    running: list[tuple[str, threading.Thread, Facts, float]] = []
    for name in chosen(context.options):
        module = area(name)
        if module.SCOPE == "host" and not context.member.is_first_on_host:
            continue
        facts: Facts = []
        thread = threading.Thread(target=_collect, args=(name, context, facts), daemon=True, name=f"check-{name}")
        thread.start()
        running.append((name, thread, facts, time.monotonic() + module.LIMIT_S))
    found: Facts = []
    for name, thread, facts, deadline in running:
        context.tell(f"reading {name}")
        thread.join(max(0.0, deadline - time.monotonic()))
        found += list(facts)
        if thread.is_alive():
            found.append(Unavailable(name, f"no answer within {area(name).LIMIT_S:g} s"))
    return found


def _collect(name: str, context: Context, facts: Facts) -> None:
    _take(name, lambda: area(name).probe(context), facts)


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
            context.tell(f"testing {name}")
            _take(name, lambda probe=probe: probe(context), found)  # type: ignore[misc]
    return found


def _gathered(party: Party, member: Member, found: Facts) -> dict[int, _Read]:
    """What every rank has read, on rank 0; elsewhere and alone only one's own."""
    readings = [f for f in found if isinstance(f, Reading)]
    own = _Read(
        member.host,
        [replace(r, host=r.host or member.host, rank=member.rank if r.rank is None else r.rank) for r in readings],
        [f for f in found if isinstance(f, Unavailable)],
    )
    everyone = party.collect("read", msgspec.to_builtins(own), _GATHER_LIMIT_S)
    return {rank: msgspec.convert(value, _Read) for rank, value in everyone.items()} or {member.rank: own}


def _case(party: Party, read: Mapping[int, _Read], options: CheckOptions) -> Case:
    """All readings as one case. What is missing on every rank alike is told once."""
    member = party.member
    readings = [reading for rank in sorted(read) for reading in read[rank].readings]
    if not party.is_alone:
        fields = {"expected": member.world_size, "came": member.world_size - len(party.absent)}
        readings.append(Reading("party.size", "", fields, host=member.host))
    readings += [
        Reading("party.missing", str(rank), {"reason": reason}, rank, read[rank].host if rank in read else "")
        for rank, reason in sorted(party.absent.items())
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
    """What could not be read, told once; with the first rank where it was read on others."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(read):
        for lack in read[rank].absent:
            ranks.setdefault((lack.what, lack.reason), []).append(rank)
    return tuple(
        Unavailable(what, reason if len(on) == len(read) else f"{reason} (rank {on[0]}, {len(on)} of {len(read)})")
        for (what, reason), on in ranks.items()
    )


def _ended(party: Party, code: int) -> int:
    """Rank 0's exit code on all ranks. Who holds the store leaves last."""
    shared = party.share("exit", code if party.member.rank == 0 or party.is_alone else None, _END_LIMIT_S)
    if not party.is_alone:
        party.collect("left", True, _LEAVE_LIMIT_S)
    return shared if isinstance(shared, int) else _CANNOT_JUDGE
