"""Rules on the program and its set-up, from what the recorder noted of them: a fault that gives no error, and remarks that accuse nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.program_facts import (
    facts_of,
    handed_out,
    launcher_limit,
    left_out,
    loaders,
    place_of,
    unlike_batches,
)
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Location, Reading
from unhang.model.rank_sets import name_ranks
from unhang.rules.base import Found, Names, rule

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
_KEPT_AT_A_PLACE, _MOST_FACTS, _MOST_QUOTED = 3, 64, 4
_SPINS, _MOVED_S = 95.0, 1.0
_SENT = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "TORCH_DISTRIBUTED_")


@rule("tensor-layout")
def tensor_layout(s: Situation) -> Iterator[Found]:
    """Tensors whose memory gloo misreads; outputs that are one; and tensors that lie in memory otherwise on another rank."""
    facts = list(facts_of(s.case, "program.tensor"))
    confidence = 0.6 if s.is_hang or s.primary_failure is not None else 0.97
    misread = [f for f in facts if f.text("backend") == "gloo" and f.text("layout") in ("gaps", "overlap")]
    aliased = [f for f in facts if f.text("layout") == "alias"]
    if misread:
        yield _on_tensors(s, misread, misread[0].text("layout"), confidence)
    if aliased:
        yield _on_tensors(s, aliased, "alias", min(confidence, 0.85))
    for unlike in _in_unlike_order(s, [f for f in facts if f.text("layout") == "permuted"]):
        yield _on_tensors(s, unlike, "order", min(confidence, 0.93))
        return


def _on_tensors(s: Situation, facts: Sequence[Reading], say: str, confidence: float) -> Found:
    first = min(facts, key=lambda f: f.number("seq") or 0)
    ranks = tuple(sorted({f.rank for f in facts if f.rank is not None and place_of(f) == place_of(first)}))
    op = _OPS.get(first.text("op"), first.text("op"))
    words = {"op": op, "sizes": first.text("sizes"), "strides": first.text("strides"), "rank": first.rank}
    words |= {"backend": first.text("backend") or "the backend"}
    at = [f for f in facts if place_of(f) == place_of(first)][:_MOST_QUOTED]
    return Found(
        confidence,
        ranks if len(ranks) < len(s.case.world) else (),
        [EvidenceLine(f"rank {f.rank} recorder", _quoted(f)) for f in at],
        words,
        say,
        ("copy", "own-output") if say == "alias" else ("contiguous", "back"),
        location=Location(first.at.file, first.at.line, first.at.function) if first.at else None,
        collective={"op": op, "seq": first["seq"]},
        group={"pg_name": first.text("group"), "pg_desc": ""},
        is_root=True,
    )


def _quoted(fact: Reading) -> str:
    op = _OPS.get(fact.text("op"), fact.text("op"))
    where = f" at {fact.at}" if fact.at else ""
    return f"{op} #{fact.text('seq')}{where}: sizes {fact.text('sizes')}, strides {fact.text('strides')}"


def _in_unlike_order(s: Situation, permuted: Sequence[Reading]) -> Iterator[Sequence[Reading]]:
    """The tensors of one call, where another rank of its group has its elements in another order, or is known to have none so."""
    members = {g.name: g.ranks for g in s.case.groups}
    by_call: dict[tuple[str, int], dict[int, Reading]] = {}
    for fact in permuted:
        if fact.rank is not None and (seq := fact.number("seq")):
            by_call.setdefault((fact.text("group"), int(seq)), {})[fact.rank] = fact
    for (group, _), facts in sorted(by_call.items()):
        strides = {f.text("strides") for f in facts.values()}
        plain = [r for r in members.get(group, ()) if r not in facts and _is_plain(s, r, next(iter(facts.values())))]
        if len(strides) > 1 or plain:
            yield list(facts.values())


def _is_plain(s: Situation, rank: int, fact: Reading) -> bool:
    """Whether a rank's tensor in the call was in one piece in the usual order: else it would have been noted, as nothing of it was left out."""
    evidence = s.case.ranks.get(rank)
    if evidence is None or evidence.steps is None or len(evidence.facts) >= _MOST_FACTS:
        return False
    places = [place_of(f) for f in evidence.facts if f.kind == "program.tensor" and f.text("op") == fact.text("op")]
    return place_of(fact) not in places and all(places.count(p) < _KEPT_AT_A_PLACE for p in places)


@rule("timeout-order", names=Names.REMARK)
def timeout_order(s: Situation) -> Iterator[Found]:
    """A loader whose limit is not below that of the groups, and a launcher whose limit is not above it."""
    limits = [g.timeout_s for g in s.case.groups if g.timeout_s]
    if not limits:
        return
    group_s = min(limits)
    for by_rank in loaders(s.case):
        fact = next(iter(by_rank.values()))
        own_s = fact.number("timeout_s") or 0.0
        if fact.number("workers") and own_s >= group_s:
            words = {"own": f"{own_s:g}", "group": f"{group_s:g}", "at": fact.at or "a line that is not known"}
            yield Found(0.7, (), [_told(fact)], words, "loader", ("loader",))
            break
    if (limit := launcher_limit(s.case)) is not None and limit[1] <= max(limits):
        words = {"what": limit[0], "own": f"{limit[1]:.0f}", "group": f"{max(limits):g}"}
        yield Found(
            0.7, (), [EvidenceLine("limits", f"{limit[0]}, {limit[1]:.0f} s")], words, "launcher", ("launcher",)
        )


def _told(fact: Reading) -> EvidenceLine:
    values = ", ".join(f"{name} {value}" for name, value in fact.fields.items() if value is not None)
    return EvidenceLine(f"rank {fact.rank} recorder", f"DataLoader at {fact.at}: {values}")


@rule("left-out-data", names=Names.REMARK)
def left_out_data(s: Situation) -> Iterator[Found]:
    """What a pass leaves out, and loaders with unlike numbers of batches."""
    got = handed_out(s.case)
    for found in left_out(s.case):
        fact = next(f for f in facts_of(s.case, "program.loader") if f.at == found.at)
        words = {"samples": f"{found.samples:,}", "of": f"{found.of:,}", "why": ", ".join(found.why), "at": found.at}
        words |= {"got": f" So far {got}." if got else ""}
        yield Found(0.7, (), [_told(fact)], words, "dropped", ("keep",))
    for fact, counts in unlike_batches(s.case):
        told = ", ".join(f"{count} ({name_ranks(ranks, 4)})" for count, ranks in counts.items())
        yield Found(0.7, (), [_told(fact)], {"counts": told, "at": fact.at}, "uneven", ("align",))


@rule("group-by-members", names=Names.REMARK)
def group_by_members(s: Situation) -> Iterator[Found]:
    """A group that its members alone make, where the default group is bound to a device: NCCL splits it off that group, which takes all ranks."""
    for fact in facts_of(s.case, "program.group"):
        if fact["bound"] is True and "nccl" in fact.text("backend"):
            yield Found(
                0.7, (), [EvidenceLine(f"rank {fact.rank} recorder", f"new_group at {fact.at}")], {"at": fact.at}
            )
            return


@rule("launcher-not-told", names=Names.REMARK)
def launcher_not_told(s: Situation) -> Iterator[Found]:
    """An exception that nobody caught, of which torchrun's error file says nothing: the entry point has no @record."""
    facts = [f for f in facts_of(s.case, "program.uncaught") if f["told"] is False]
    if facts:
        ranks = tuple(sorted({f.rank for f in facts if f.rank is not None}))
        lines = [EvidenceLine(f"rank {f.rank} recorder", f"TORCHELASTIC_ERROR_FILE is {f.text('file')}") for f in facts]
        yield Found(0.7, (), lines[:_MOST_QUOTED], {"who": name_ranks(ranks, 4)})


@rule("settings-lost", names=Names.REMARK)
def settings_lost(s: Situation) -> Iterator[Found]:
    """Variables that were set for the job and came to no rank, or with another value: of Ray's actors, of ranks on other machines."""
    for fact in facts_of(s.case, "program.settings"):
        evidence = EvidenceLine(f"rank {fact.rank} recorder", f"the driver has {fact.text('lost')}, this rank has not")
        yield Found(0.7, (), [evidence], {"names": fact.text("lost")})
        return
    ranks = {r: e.identity.variables for r, e in s.case.ranks.items() if e.identity.variables}
    given = {n: v for n, v in {**s.case.job.environment, **s.case.job.added}.items() if n.startswith(_SENT)}
    lost = {name: value for name, value in given.items() if ranks and all(name not in v for v in ranks.values())}
    if lost and len(ranks) == len(s.case.ranks):
        lines = [EvidenceLine("the job's environment", f"{name}={value}") for name, value in lost.items()]
        yield Found(0.7, (), lines[:_MOST_QUOTED], {"names": ", ".join(sorted(lost)[:8])})


@rule("device-spins", names=Names.REMARK)
def device_spins(s: Situation) -> Iterator[Found]:
    """Devices that say they are fully used, in a job that stands."""
    hang, course = s.case.hang, s.case.course
    if hang is None or hang.withdrawn or hang.onset_s is None or course is None:
        return
    spins = {}
    for name, values in course.samples.items():
        if name.startswith("device ") and name.endswith(" use"):
            times = course.samples.get("at_s", ())
            since = [v for t, v in zip(times, values, strict=False) if t is not None and t > hang.onset_s + _MOVED_S]
            if len(since) > 1 and all(v is not None and v >= _SPINS for v in since):
                spins[name.removesuffix(" use")] = since
    if spins:
        lines = [
            EvidenceLine("NVML", f"{name}: {', '.join(f'{v:.0f} %' for v in u[:6] if v)}") for name, u in spins.items()
        ]
        yield Found(0.7, (), lines[:_MOST_QUOTED], {"devices": _joined(spins)})


def _joined(devices: Mapping[str, object]) -> str:
    names = list(devices)
    return names[0] if len(names) == 1 else f"devices {', '.join(n.removeprefix('device ') for n in names[:16])}"


@rule("library-changed", names=Names.REMARK)
def library_changed(s: Situation) -> Iterator[Found]:
    """What came and went in the folders of Python's modules while the job ran."""
    for change in s.case.course.changed if s.case.course else ():
        what = [*(f"{n} is gone" for n in change.gone[:4]), *(f"{n} is new" for n in change.new[:4])]
        words = {"path": change.path, "at": f"{change.at_s:.0f}", "what": ", ".join(what)}
        yield Found(0.7, (), [EvidenceLine(change.path, ", ".join(what))], words)
