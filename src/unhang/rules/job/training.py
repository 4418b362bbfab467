"""Rules on jobs that run and do not train as they should: what the log, the recorder and unhang's own checks in the program show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unhang.analyze import by_kind
from unhang.analyze.lines.log_progress import slow_starts, slower, starved
from unhang.analyze.lines.measured import mostly_in_collectives, unlike_paces
from unhang.analyze.lines.own_lines import empty_epochs, same_evaluations
from unhang.analyze.lines.training import (
    always_skipped,
    kept_apart,
    never_a_number,
    no_gradient,
    parted_replicas,
    scale_gone,
    steps_alone,
)
from unhang.analyze.situation import Situation
from unhang.analyze.slow_work import crowded, over_sockets
from unhang.model import EvidenceLine, Fix, Location, LogLine, Reading
from unhang.model.findings import name_ranks
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule
from unhang.rules.log_lines import found_in, quote, quote_own

MIN_SKIPPED = 20  # a scale of 65536 has then come to 0.06: no overflow explains it
_LEARNING = re.compile(r"^\[learning\] (?:rank \d+: |(?!rank \d))(?!the check ends)(?!DDP module )(?P<text>.+)")
_APART = re.compile(r"^\[learning\] (?:rank \d+: )?(?P<text>DDP module .+)")
_REPLICAS = re.compile(r"^\[replicas\] (?P<text>replicas differ since .+)")
_DIFFER = re.compile(r", ranks? (?P<ranks>\d[\d, -]*) differs? from ranks? ")
_MOST_QUOTED = 6


def _said(s: Situation, *patterns: re.Pattern[str]) -> dict[str, LogLine]:
    """What a check in the program printed, each text with the line where it first stands."""
    found: dict[str, LogLine] = {}
    for pattern in patterns:
        for line in s.case.log:
            if line.text.startswith("[") and (match := pattern.match(line.text)):
                found.setdefault(match["text"], line)
    return found


def _quoted(said: dict[str, LogLine]) -> list[EvidenceLine]:
    return [EvidenceLine("output", e.text[:300], e.source.line) for e in list(said.values())[:_MOST_QUOTED]]


def _beside_a_failure(s: Situation, otherwise: float) -> float:
    """Less where something else failed, of which this may be an omen."""
    return 0.6 if s.is_hang or s.primary_failure is not None else otherwise


@rule("not-learning")
def not_learning(s: Situation) -> Iterator[Found]:
    """What the recorder counted, or `unhang.check_learning` saw; else the lines of the training, of the kind that is surest."""
    fixes: Sequence[str | Fix] = ("no-scaler", "stop", "no-smaller")
    if skipped := _skipped_on_all(s):
        steps = max(e.steps or 0 for e in s.case.ranks.values())
        counted = [(r, e.steps or 0, e.skipped_steps) for r, e in list(s.case.ranks.items())[:4]]
        evidence = (
            *(
                EvidenceLine(f"rank {r} recorder", f"{n} optimizer steps taken, the last {k} left out")
                for r, n, k in counted
            ),
            *quote([*s.events.of("learn.loss_nan")[:1], *s.events.of("learn.scale")[-1:]]),
        )
        words = {"skipped": skipped, "steps": steps}
        confidence = _beside_a_failure(s, 0.85)
        yield Found(confidence, (), evidence, words, "later" if steps else "never", fixes)
    elif said := _said(s, _LEARNING):
        text, _, advice = next(iter(said)).partition("; ")
        fix = Fix(advice or text, "the line is not printed any more", setting=advice or text, undo="revert the edit")
        yield Found(_beside_a_failure(s, 0.95), (), _quoted(said), {"text": text}, "check", (fix,))
    elif events := s.events.of("learn.scale_minimum"):
        yield found_in(s, events, 0.95, (), say="scale", fixes=fixes)
    else:
        finds = ((scale_gone, "scale"), (always_skipped, "skipped"), (never_a_number, "nan"), (no_gradient, "zero"))
        for find, say in finds:
            if events := find(s):
                say = "scale" if say == "skipped" and events[0].kind == "learn.overflow" else say
                confidence = _beside_a_failure(s, 0.85)
                yield found_in(
                    s,
                    events,
                    confidence,
                    (),
                    words={"count": len(events)},
                    say=say,
                    fixes=_OF_VALUES.get(say, fixes),
                    is_root=True,
                )
                return
        if same := same_evaluations(s):
            lines = [w.log_line("log", x) for x in (*same[:2], same[-1])]
            yield Found(_beside_a_failure(s, 0.8), (), lines, {"count": len(same)}, "same", ("whose weights",))
        elif empty := empty_epochs(s):
            lines = [w.log_line("log", x) for x in empty[:3]]
            yield Found(_beside_a_failure(s, 0.85), (), lines, {"count": len(empty)}, "empty", ("a batch for each",))


# What helps where the values themselves are wrong; no loss scale is told of.
_OF_VALUES = {"zero": ("whose weights",), "nan": ("stop",)}


def _skipped_on_all(s: Situation) -> int:
    """How many steps the loss scaler has left out in a row on every rank, where they are too many for a scale that finds its place."""
    least = min((e.skipped_steps for e in s.case.ranks.values() if e.steps is not None), default=0)
    return least if least >= MIN_SKIPPED else 0


@rule("slow-steps")
def slow_steps(s: Situation) -> Found | None:
    """Steps that mostly wait for their data, or that take longer than before, to the end of the log of a job that has not failed."""
    if s.is_hang or s.is_crash or s.primary_failure is not None:
        return None
    if waits := starved(s.events):
        words = {"data": f"{waits.data_s:.3g}", "step": f"{waits.step_s:.3g}", "count": len(waits.events)}
        return found_in(
            s, waits.events[-_MOST_QUOTED:], 0.85, (), words=words, say="data", fixes=("loader", "no-timeout")
        )
    if starts := slow_starts(s.events):
        words = {"step": f"{max(starts.step_s):.0f}", "data": f"{max(starts.data_s):.0f}", "text": starts.text()}
        return found_in(
            s,
            starts.events[:_MOST_QUOTED],
            0.8,
            (),
            words=words,
            say="first",
            fixes=("workers", "no-timeout"),
            is_root=True,
        )
    if crowd := crowded(s.events):
        words = {"load": f"{crowd.load:.0f}", "cores": crowd.cores}
        return found_in(s, crowd.events, 0.82, (), words=words, say="cores", fixes=("threads", "no-timeout"))
    if over := over_sockets(s.events):
        words = {"how": f" {over.step_s:.0f} s" if over.step_s else " far longer than usual", "name": over.setting}
        words["why"] = (
            "the plugin of the fast network failed"
            if "OFI" in over.why.text
            else "NCCL found no adapter of a faster network"
        )
        say, cause = ("forced", "misconfigured-env") if over.setting else ("sockets", "")
        events = (over.why, over.way, over.told)
        return found_in(s, events, 0.75, (), words=words, say=say, cause=cause, fixes=("network",))
    if profile := mostly_in_collectives(s):
        words = {"calls": f"{profile.in_calls_s:.3g}", "all": f"{profile.of_s:.3g}"}
        return Found(
            0.75, (), [w.log_line("log", x) for x in profile.rows], words, "calls", ("less to send", "no-timeout")
        )
    if paces := unlike_paces(s):
        words = {"slow": f"{paces.slow_s:.3g}", "quick": f"{paces.quick_s:.3g}"}
        return found_in(s, paces.events, 0.75, (), words=words, say="runs", fixes=("between runs", "no-timeout"))
    if last := slower(s.events):
        words = {"before": f"{last.before_s:.3g}", "after": f"{last.after_s:.3g}"}
        return found_in(s, last.events, 0.75, (), words=words, say="slower", fixes=("look", "no-timeout"))
    return None


_OF_REPLICAS = ("find", "wrapper")


@rule("silent-desync")
def silent_desync(s: Situation) -> Iterator[Found]:
    """What `unhang.check_replicas` or `unhang.check_learning` saw; else another check, unless something failed before it."""
    if said := _said(s, _REPLICAS, _APART):
        text = next(iter(said))
        ranks = _ranks_that_differ(text)
        yield Found(
            _beside_a_failure(s, 0.95), ranks, _quoted(said), {"text": text.partition(";")[0]}, "check", _OF_REPLICAS
        )
        return
    events = s.events.of("learn.desync")
    if events and not any(e.says == "hang" and e.order < events[0].order for e in s.events):
        yield found_in(s, events, 0.88, fixes=_OF_REPLICAS)
    elif not events and (parted := parted_replicas(s)) is not None:
        lines = [w.log_line(f"rank {r}", x) for r, x in parted.lines[:_MOST_QUOTED]]
        say = "values" if parted.was_equal else "reduced" if parted.is_reduced else "replicas"
        yield Found(0.8, (), lines, {"name": parted.name}, say, _OF_REPLICAS)
    elif not events and (kept := kept_apart(s)) is not None:
        lines = [w.log_line(f"rank {r}", x) for r, x in kept.lines[:_MOST_QUOTED]]
        yield Found(_beside_a_failure(s, 0.78), (), lines, {"name": kept.name}, "kept", ("same at the start",))
    elif not events and not (s.is_hang or s.is_crash) and (alone := steps_alone(s)) is not None:
        words = {"ahead": alone.ahead, "behind": alone.behind, "steps": alone.steps}
        yield Found(0.78, (), quote_own(alone.lines), words, "alone", _OF_REPLICAS)


def _ranks_that_differ(text: str) -> tuple[int, ...]:
    """The minority that a comparison named; none where it found no majority, or named too many to list."""
    found = _DIFFER.search(text)
    ranks: list[int] = []
    for part in found["ranks"].split(",") if found else ():
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return ()
        ranks.extend(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return tuple(ranks)


@rule("skipped-step")
def skipped_step(s: Situation) -> Iterator[Found]:
    """The last skips before the first timeout."""
    timeout = next((e for e in s.events if e.says == "hang"), None)
    found = [e for e in s.events.of("learn.step_skipped") if timeout is not None and e.order < timeout.order]
    if not found or timeout is None:
        return
    steps = [e for e in s.events.of("progress.step") if found[-1].order < e.order < timeout.order]
    ranks = {e.rank for e in found if e.rank is not None}
    if len(steps) <= 2 and not (ranks and ranks >= set(s.watchdogs.ranks)):
        yield found_in(s, found[-3:], 0.84)


# Rules on the program and its set-up, from what the recorder noted of them: a fault that gives no error, and remarks that accuse nobody.

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
_KEPT_AT_A_PLACE, _MOST_FACTS, _MOST_QUOTED_FACTS = 3, 64, 4
_SENT = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "TORCH_DISTRIBUTED_")


@rule("tensor-layout")
def tensor_layout(s: Situation) -> Iterator[Found]:
    """Tensors whose memory gloo misreads; outputs that are one; and tensors that lie in memory otherwise on another rank."""
    facts = list(by_kind.facts_of(s.case, "program.tensor"))
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
    ranks = tuple(
        sorted({f.rank for f in facts if f.rank is not None and by_kind.place_of(f) == by_kind.place_of(first)})
    )
    op = _OPS.get(first.text("op"), first.text("op"))
    words = {"op": op, "sizes": first.text("sizes"), "strides": first.text("strides"), "rank": first.rank}
    words |= {"backend": first.text("backend") or "the backend"}
    at = [f for f in facts if by_kind.place_of(f) == by_kind.place_of(first)][:_MOST_QUOTED_FACTS]
    return Found(
        confidence,
        ranks if len(ranks) < len(s.case.world) else (),
        [EvidenceLine(f"rank {f.rank} recorder", _quoted_fact(f)) for f in at],
        words,
        say,
        ("copy", "own-output") if say == "alias" else ("contiguous", "back"),
        location=Location(first.at.file, first.at.line, first.at.function) if first.at else None,
        collective={"op": op, "seq": first["seq"]},
        group={"pg_name": first.text("group"), "pg_desc": ""},
        is_root=True,
        victims=(),
    )


def _quoted_fact(fact: Reading) -> str:
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
    places = [
        by_kind.place_of(f) for f in evidence.facts if f.kind == "program.tensor" and f.text("op") == fact.text("op")
    ]
    return by_kind.place_of(fact) not in places and all(places.count(p) < _KEPT_AT_A_PLACE for p in places)


@rule("timeout-order", names=Names.REMARK)
def timeout_order(s: Situation) -> Iterator[Found]:
    """A loader whose limit is not below that of the groups, and a launcher whose limit is not above it."""
    limits = [g.timeout_s for g in s.case.groups if g.timeout_s]
    if not limits:
        return
    group_s = min(limits)
    for by_rank in by_kind.loaders(s.case):
        fact = next(iter(by_rank.values()))
        own_s = fact.number("timeout_s") or 0.0
        if fact.number("workers") and own_s >= group_s:
            words = {"own": f"{own_s:g}", "group": f"{group_s:g}", "at": fact.at or "a line that is not known"}
            yield Found(0.7, (), [_told(fact)], words, "loader", ("loader",))
            break
    if (limit := by_kind.launcher_limit(s.case)) is not None and limit[1] <= max(limits):
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
    got = by_kind.handed_out(s.case)
    for found in by_kind.left_out(s.case):
        fact = next(f for f in by_kind.facts_of(s.case, "program.loader") if f.at == found.at)
        words = {"samples": f"{found.samples:,}", "of": f"{found.of:,}", "why": ", ".join(found.why), "at": found.at}
        words |= {"got": f" So far {got}." if got else ""}
        yield Found(0.7, (), [_told(fact)], words, "dropped", ("keep",))
    for fact, counts in by_kind.unlike_batches(s.case):
        told = ", ".join(f"{count} ({name_ranks(ranks, 4)})" for count, ranks in counts.items())
        yield Found(0.7, (), [_told(fact)], {"counts": told, "at": fact.at}, "uneven", ("align",))


@rule("group-by-members", names=Names.REMARK)
def group_by_members(s: Situation) -> Iterator[Found]:
    """A group that its members alone make, where the default group is bound to a device: NCCL splits it off that group, which takes all ranks."""
    for fact in by_kind.facts_of(s.case, "program.group"):
        if fact["bound"] is True and "nccl" in fact.text("backend"):
            yield Found(
                0.7, (), [EvidenceLine(f"rank {fact.rank} recorder", f"new_group at {fact.at}")], {"at": fact.at}
            )
            return


@rule("launcher-not-told", names=Names.REMARK)
def launcher_not_told(s: Situation) -> Iterator[Found]:
    """An exception that nobody caught, of which torchrun's error file says nothing: the entry point has no @record."""
    facts = [f for f in by_kind.facts_of(s.case, "program.uncaught") if f["told"] is False]
    if facts:
        ranks = tuple(sorted({f.rank for f in facts if f.rank is not None}))
        lines = [EvidenceLine(f"rank {f.rank} recorder", f"TORCHELASTIC_ERROR_FILE is {f.text('file')}") for f in facts]
        yield Found(0.7, (), lines[:_MOST_QUOTED_FACTS], {"who": name_ranks(ranks, 4)})


@rule("settings-lost", names=Names.REMARK)
def settings_lost(s: Situation) -> Iterator[Found]:
    """Variables that were set for the job and came to no rank, or with another value: of Ray's actors, of ranks on other machines."""
    for fact in by_kind.facts_of(s.case, "program.settings"):
        evidence = EvidenceLine(f"rank {fact.rank} recorder", f"the driver has {fact.text('lost')}, this rank has not")
        yield Found(0.7, (), [evidence], {"names": fact.text("lost")})
        return
    ranks = {r: e.identity.variables for r, e in s.case.ranks.items() if e.identity.variables}
    given = {n: v for n, v in {**s.case.job.environment, **s.case.job.added}.items() if n.startswith(_SENT)}
    lost = {name: value for name, value in given.items() if ranks and all(name not in v for v in ranks.values())}
    if lost and len(ranks) == len(s.case.ranks):
        lines = [EvidenceLine("the job's environment", f"{name}={value}") for name, value in lost.items()]
        yield Found(0.7, (), lines[:_MOST_QUOTED_FACTS], {"names": ", ".join(sorted(lost)[:8])})


@rule("library-changed", names=Names.REMARK)
def library_changed(s: Situation) -> Iterator[Found]:
    """What came and went in the folders of Python's modules while the job ran."""
    for change in s.case.course.changed if s.case.course else ():
        what = [*(f"{n} is gone" for n in change.gone[:4]), *(f"{n} is new" for n in change.new[:4])]
        words = {"path": change.path, "at": f"{change.at_s:.0f}", "what": ", ".join(what)}
        yield Found(0.7, (), [EvidenceLine(change.path, ", ".join(what))], words)
