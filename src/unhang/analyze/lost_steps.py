"""Steps that train nothing, as the lines of a training tell it: all skipped, no numbers, or no gradient."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unhang.model import LogEvent

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
