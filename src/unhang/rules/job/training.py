"""Rules on jobs that run and do not train as they should: what the log, the recorder and unhang's own checks in the program show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unhang.analyze.log_progress import slow_starts, slower, starved
from unhang.analyze.parted_replicas import parted_replicas
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Fix, LogEvent, LogLine
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import found_in, quote

MIN_LINES = 5
MIN_SKIPPED = 20  # a scale of 65536 has then come to 0.06: no overflow explains it
LAST_SHARE = 0.9
_LEAST_SCALE = 1e-3
_NUMBERS = re.compile(r"\d+\.?\d*(?:[eE][+-]?\d+)?")
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
        for find, say in ((_scale_gone, "scale"), (_always_skipped, "skipped"), (_never_a_number, "nan")):
            if events := find(s):
                say = "scale" if say == "skipped" and events[0].kind == "learn.overflow" else say
                confidence = _beside_a_failure(s, 0.85)
                yield found_in(
                    s, events, confidence, (), words={"count": len(events)}, say=say, fixes=fixes, is_root=True
                )
                return


def _skipped_on_all(s: Situation) -> int:
    """How many steps the loss scaler has left out in a row on every rank, where they are too many for a scale that finds its place."""
    least = min((e.skipped_steps for e in s.case.ranks.values() if e.steps is not None), default=0)
    return least if least >= MIN_SKIPPED else 0


def _scale_gone(s: Situation) -> tuple[LogEvent, ...]:
    """The last loss scales, where they are all next to nothing and have fallen there: one that was chosen stays as it is."""
    scales = [(e, max(map(float, _NUMBERS.findall(f"{e['scale']} {e['others']}")))) for e in s.events.of("learn.scale")]
    last = scales[-MIN_LINES:]
    is_gone = len(last) == MIN_LINES and all(x < _LEAST_SCALE for _, x in last)
    has_fallen = is_gone and (last[-1][1] == 0 or max(x for _, x in scales) > last[-1][1])
    return tuple(e for e, _ in last) if has_fallen else ()


def _always_skipped(s: Situation) -> tuple[LogEvent, ...]:
    """Steps that report themselves as skipped, to the end."""
    stuck = [e for e in s.events.of("learn.overflow") if e["before"] and _real(e["before"]) == _real(e["after"])]
    losses = [e for e in s.events.of("learn.loss_finite") if stuck and e.order > stuck[0].order]
    if len(stuck) >= MIN_LINES and len(losses) <= len(stuck):
        return tuple(stuck)
    counted = [e for e in s.events.of("learn.skipped_iterations") if e["what"] == "skipped"]
    last = counted[-2 * MIN_LINES :]
    return tuple(last) if len(last) == 2 * MIN_LINES and all((e.number("count") or 0) > 0 for e in last) else ()


def _never_a_number(s: Situation) -> tuple[LogEvent, ...]:
    """Losses or gradient norms that are no numbers, from some line to the end of the log.

    Not gradients alone where steps were taken to the end: with gradients that are no numbers no loss would stay one.
    """
    takes_steps = any(e.steps and not e.skipped_steps for e in s.case.ranks.values())
    for what in ("loss", "grad"):
        nan = s.events.of(f"learn.{what}_nan")
        after = [e for e in s.events.of(f"learn.{what}_finite") if nan and e.order > nan[0].order]
        is_last = len(nan) >= MIN_LINES and nan[-1].order > max((e.order for e in after), default=-1)
        is_usual = len(nan) >= LAST_SHARE * (len(nan) + len(after))
        if is_last and is_usual and not (what == "grad" and takes_steps and s.events.has("learn.loss_finite")):
            return nan
    return ()


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
    if last := slower(s.events):
        words = {"before": f"{last.before_s:.3g}", "after": f"{last.after_s:.3g}"}
        return found_in(s, last.events, 0.75, (), words=words, say="slower", fixes=("look", "no-timeout"))
    return None


@rule("silent-desync")
def silent_desync(s: Situation) -> Iterator[Found]:
    """What `unhang.check_replicas` or `unhang.check_learning` saw; else another check, unless something failed before it."""
    if said := _said(s, _REPLICAS, _APART):
        text = next(iter(said))
        ranks = _ranks_that_differ(text)
        words, victims = {"text": text.partition(";")[0]}, s.others(ranks) if ranks else ()
        yield Found(_beside_a_failure(s, 0.95), ranks, _quoted(said), words, "check", victims=victims)
        return
    events = s.events.of("learn.desync")
    if events and not any(e.says == "hang" and e.order < events[0].order for e in s.events):
        yield found_in(s, events, 0.88)
    elif not events and (parted := parted_replicas(s)) is not None:
        lines = [EvidenceLine(f"rank {r}", x.text.strip()[:200], x.source.line) for r, x in parted.lines[:_MOST_QUOTED]]
        yield Found(0.8, (), lines, {"name": parted.name}, "values")


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
