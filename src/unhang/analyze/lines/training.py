"""What the lines of a training tell of its model: steps that train nothing, and replicas that drift apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.own_lines import OwnLine, own_lines
from unhang.model import LogEvent, LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

MIN_LINES = 5
_FLAT = 0.01
LAST_SHARE = 0.9
_LEAST_SCALE = 1e-3
_NUMBERS = re.compile(r"\d+\.?\d*(?:[eE][+-]?\d+)?")
_FINE = re.compile(r"\d\.\d{3,}")


def scale_gone(s: Situation) -> tuple[LogEvent, ...]:
    """The last loss scales, where they are all next to nothing and have fallen there: one that was chosen stays as it is."""
    scales = [(e, max(map(float, _NUMBERS.findall(f"{e['scale']} {e['others']}")))) for e in s.events.of("learn.scale")]
    last = scales[-MIN_LINES:]
    is_gone = len(last) == MIN_LINES and all(x < _LEAST_SCALE for _, x in last)
    has_fallen = is_gone and (last[-1][1] == 0 or max(x for _, x in scales) > last[-1][1])
    return tuple(e for e, _ in last) if has_fallen else ()


def always_skipped(s: Situation) -> tuple[LogEvent, ...]:
    """Steps that report themselves as skipped, to the end."""
    stuck = [e for e in s.events.of("learn.overflow") if e["before"] and _real(e["before"]) == _real(e["after"])]
    losses = [e for e in s.events.of("learn.loss_finite") if stuck and e.order > stuck[0].order]
    if len(stuck) >= MIN_LINES and len(losses) <= len(stuck):
        return tuple(stuck)
    counted = [e for e in s.events.of("learn.skipped_iterations") if e["what"] == "skipped"]
    last = counted[-2 * MIN_LINES :]
    return tuple(last) if len(last) == 2 * MIN_LINES and all((e.number("count") or 0) > 0 for e in last) else ()


def never_a_number(s: Situation) -> tuple[LogEvent, ...]:
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


def no_gradient(s: Situation) -> tuple[LogEvent, ...]:
    """Gradient norms of zero in every line of the training, beside a loss that stays where it was; or that are zero itself, not rounded to it."""
    losses = {e.order: float(e["loss"]) for e in s.events.of("learn.loss_finite")}
    norms = tuple(e for e in s.events.of("learn.grad_finite") if e.order in losses)
    if len(norms) < 2 * MIN_LINES or any(_real(e["norm"]) for e in norms):
        return ()
    least, most = min(losses.values()), max(losses.values())
    return norms if most - least < _FLAT * abs(most) or all(map(_is_exact, norms)) else ()


def _is_exact(event: LogEvent) -> bool:
    """Whether a norm is printed as Python prints zero, `0.0`, in a line whose other numbers have more digits: no rounded number."""
    return event["norm"] == "0.0" and bool(_FINE.search(event.text))


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_MOST_LINES, _MOST_CHARS = 4000, 300
_LEAST, _NEAR = 3, 1e-3
_MEASURE = r"(?:sum|norm|mean|hash|checksum|crc|md5|sha)"
_NUMBER = r"[-+]?\d+\.\d+(?:e[-+]?\d+)?|0x[0-9a-f]{6,64}|[0-9a-f]{8,64}"
# `w.sum=`, `fc.weight norm:`; `sum|fc.weight|=`, `norm(fc.weight) =`.
_VALUE = lazy_pattern(
    rf"\b(?P<name>(?:w|weights?|params?|parameters?|model|state_?dict)[._ -](?:\w{{1,20}}[._ -])?{_MEASURE}"
    rf"|{_MEASURE}[|(\[ ]{{1,2}}[\w.]{{0,60}}(?:weight|param|bias)\w{{0,20}}[|)\]]{{0,2}})[=: ]{{1,3}}(?P<value>{_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
# A norm of gradients, where the line says that it is the one of all ranks.
_REDUCED = lazy_pattern(
    r"\b(?P<name>grad(?:ient)?s?[ _]?norm ?[(\[]? ?(?:after|post)[ _-](?:all[ _-]?)?(?:reduc\w*|sync\w*)[)\]]?"
    r"|(?:all[ _-]?)?(?:reduced|synced|synchroni[sz]ed)[ _-]grad(?:ient)?s?[ _]?norm)[=: ]{1,3}"
    r"(?P<value>\d+\.\d+(?:e[-+]?\d+)?)(?![\w.])",
    re.IGNORECASE,
)
_RANK = lazy_pattern(r"\brank[ _:=#-]?(\d{1,5})\b", re.IGNORECASE)
# Replicas may differ by design, or a rank holds a part of the model only.
_BY_DESIGN = lazy_pattern(
    r"local[ _-]?sgd|DiLoCo|ZeRO|zero_?stage|pipeline|(?:tensor|expert)[ _-]?parallel|federated|gossip"
    r"|(?:tensor|pipeline|expert)_model_parallel_size[ =:.]+(?!1\b)\d",
    re.IGNORECASE,
)
# A number of one part of the program's state: `mean(quantizer.P)=`, `ema.teacher.norm: `.
_STATE = lazy_pattern(
    rf"(?<![\w.])(?P<name>{_MEASURE}[(|\[] ?[A-Za-z_][\w.]{{0,60}}[)|\]]|[A-Za-z_][\w.]{{0,60}}[._]{_MEASURE})[=: ]{{1,3}}(?P<value>{_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
# Of which each rank has its own.
_OWN_STATE = lazy_pattern(
    r"data|shard|batch|input|output|ind(?:ex|ices)|sample|label|target|mask|rng|seed|random|grad|activ|logit|token|image|feature|loss|expert|local|rank|part\b",
    re.IGNORECASE,
)
_SHARDS = lazy_pattern(r"FSDP|fully_shard", re.IGNORECASE)
_IN_WHOLE = lazy_pattern(r"\bno_shard\b", re.IGNORECASE)  # FSDP's way to be DDP
_IS_DDP = lazy_pattern(r"\bDistributedDataParallel\b|\bDDP\b")

Values = Mapping[str, Mapping[int, Sequence[tuple[str, LogLine]]]]


class Parted(NamedTuple):
    """The value that parted. `lines`: of each rank where it was equal for the last time, or at first, and at the end."""

    name: str
    lines: Sequence[tuple[int, LogLine]]
    was_equal: bool = True
    is_reduced: bool = False


class _Told(NamedTuple):
    weights: Values
    reduced: Values
    state: Values
    is_ddp: bool


def parted_replicas(s: Situation) -> Parted | None:
    """A value of the weights that all ranks print, different in each of the last lines, and equal in the first line of each, or else under DDP.

    Else a norm of gradients that are reduced, which is another one on each rank in every step.
    """
    told = _told(s)
    if told is None:
        return None
    found = (_parted(name, of_ranks, told.is_ddp) for name, of_ranks in told.weights.items())
    return next((p for p in (*found, *_unreduced(told.reduced)) if p is not None), None)


def _told(s: Situation) -> _Told | None:
    """What each rank printed of its replica; None where replicas may differ by design."""
    is_ddp = shards = in_whole = False
    weights: dict[str, dict[int, list[tuple[str, LogLine]]]] = {}
    reduced: dict[str, dict[int, list[tuple[str, LogLine]]]] = {}
    state: dict[str, dict[int, list[tuple[str, LogLine]]]] = {}
    for line in s.case.log[:_MOST_LINES]:
        text = line.text[:_MOST_CHARS]
        if _BY_DESIGN.search(text):
            return None
        is_ddp = is_ddp or _IS_DDP.search(text) is not None
        shards = shards or _SHARDS.search(text) is not None
        in_whole = in_whole or _IN_WHOLE.search(text) is not None
        for pattern, told in ((_VALUE, weights), (_REDUCED, reduced), (_STATE, state)):
            for found in pattern.finditer(text):
                if (rank := _rank_of(line)) is not None:
                    told.setdefault(found["name"], {}).setdefault(rank, []).append((found["value"], line))
    return None if shards and not in_whole else _Told(weights, reduced, state, is_ddp or in_whole)


def _rank_of(line: LogLine) -> int | None:
    own = _RANK.search(line.text[:_MOST_CHARS]) if line.rank is None else None
    return line.rank if line.rank is not None else int(own[1]) if own else None


def _rounds(of_ranks: Mapping[int, Sequence[tuple[str, LogLine]]]) -> list[list[str]]:
    """The values of each round, where all ranks tell about as many, and enough."""
    count = min((len(values) for values in of_ranks.values()), default=0)
    if len(of_ranks) < 2 or count < _LEAST or max(len(v) for v in of_ranks.values()) > count + 1:
        return []
    return [[values[i][0] for values in of_ranks.values()] for i in range(count)]


def _parted(name: str, of_ranks: Mapping[int, Sequence[tuple[str, LogLine]]], is_ddp: bool) -> Parted | None:
    rounds = _rounds(of_ranks)
    if not rounds:
        return None
    was_equal = len(set(rounds[0])) == 1
    if not (was_equal or (is_ddp and all(len(set(values)) > 1 for values in rounds))):
        return None
    if was_equal and not all(map(_differ, rounds[-_LEAST + 1 :])):
        return None
    shown = (max((i for i, values in enumerate(rounds) if len(set(values)) == 1), default=0), len(rounds) - 1)
    lines = [(r, values[i][1]) for i in shown for r, values in sorted(of_ranks.items())]
    return Parted(name, lines, was_equal)


def _unreduced(told: Values) -> Iterator[Parted]:
    for name, of_ranks in told.items():
        rounds = _rounds(of_ranks)
        if rounds and all(len(set(values)) == len(values) and _differ(values) for values in rounds):
            lines = [(r, values[i][1]) for i in (0, len(rounds) - 1) for r, values in sorted(of_ranks.items())]
            yield Parted(name, lines, was_equal=False, is_reduced=True)


def kept_apart(s: Situation) -> Parted | None:
    """A part of the state that never changes on any rank and is another one on each, beside one that the training changes alike on all.

    What is not trained is given to the other ranks by nobody, unless the wrapper or the seed does.
    """
    told = _told(s)
    rounds = {name: _rounds(of_ranks) for name, of_ranks in told.state.items()} if told is not None else {}
    learns = [n for n, of in rounds.items() if of and all(len(set(values)) == 1 for values in of) and of[0] != of[-1]]
    if told is None or not learns:
        return None
    for name, of in rounds.items():
        stays = bool(of) and all(values == of[0] for values in of) and len(set(of[0])) == len(of[0])
        if stays and _differ(of[0]) and not _OWN_STATE.search(name):
            lines = [(r, values[i][1]) for i in (0, -1) for r, values in sorted(told.state[name].items())]
            return Parted(name, lines, was_equal=False)
    return None


def _differ(values: Sequence[str]) -> bool:
    """Whether hashes differ, or numbers by more than rounding."""
    try:
        numbers = [float(v) for v in values]
    except ValueError:
        return len(set(values)) > 1
    return max(numbers) - min(numbers) > _NEAR * max(map(abs, numbers))


_AT_STEP = lazy_pattern(r"\b(?:global[ _])?(?:step|iter(?:ation)?|update)s?[ :=#\[(]{1,3}(\d{1,9})\b", re.IGNORECASE)
_IS_TEST = lazy_pattern(r"\b(?:valid\w*|eval\w*|test\w*|predict\w*|generat\w*|rollout\w*)\b", re.IGNORECASE)
_LEAST_AHEAD, _LEAST_LINES = 20, 3


class Alone(NamedTuple):
    """A rank that took `steps` steps while another one, `behind`, took none, and went on later. `lines`: the other's last one, those of the first, the other's next one."""

    ahead: int
    behind: int
    steps: int
    lines: Sequence[OwnLine]


_Step = tuple[int, OwnLine]


def steps_alone(s: Situation) -> Alone | None:
    """Under DDP: steps of one rank between two following steps of another, by the times that the lines themselves have.

    Each step ends in a reduction of all ranks, so a rank that waits for the others can be a few steps ahead, and not many.
    """
    told = _told(s)
    if told is None or not told.is_ddp:
        return None
    found = (
        (_AT_STEP.search(x.line.text[:_MOST_CHARS]), x)
        for x in own_lines(s)
        if x.line.time_ns and not _IS_TEST.search(x.words)
    )
    steps = [(int(m[1]), x) for m, x in found if m is not None and x.rank is not None]
    if any((b.line.time_ns or 0) < (a.line.time_ns or 0) for (_, a), (_, b) in pairwise(steps)):
        return None
    ranks = sorted({x.rank for _, x in steps if x.rank is not None})
    pairs = ((a, b) for a in ranks for b in ranks if a != b)
    return max((x for a, b in pairs if (x := _alone(steps, a, b))), key=lambda x: x.steps, default=None)


def _alone(steps: Sequence[_Step], ahead: int, behind: int) -> Alone | None:
    """The longest run of steps of one rank between two of the other: many of both, and more than lies between two lines of the other."""
    best: Alone | None = None
    run: list[_Step] = []
    last: _Step | None = None
    for step, line in steps:
        if line.rank == ahead and last is not None:
            run.append((step, line))
        elif line.rank == behind:
            is_later = last is not None and last[0] <= step < run[-1][0] if run else False
            passed = run[-1][0] - step if run else 0
            times = {x.line.time_ns for _, x in run}
            is_alone = is_later and len(times) >= _LEAST_LINES and (best is None or passed > best.steps)
            if last is not None and is_alone and passed >= max(_LEAST_AHEAD, 2 * (step - last[0])):
                best = Alone(ahead, behind, passed, (last[1], run[0][1], run[-1][1], line))
            run, last = [], (step, line)
    return best
