"""Which ranks did not submit which tensor, by what Horovod's stall inspector reports: whom it misses; of older releases, who is ready."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.by_kind import Events
from unhang.model import LogEvent

_READY = re.compile(r"(\S{1,400}) ?\[ready ranks: ?(\d+(?:, ?\d+)*)")
_KINDS = ("horovod.stalled", "horovod.missing", "horovod.missing_for", "horovod.ready")


def reports(events: Events) -> Iterator[Sequence[LogEvent]]:
    """The lines of each report; its first one may hold tensors, too."""
    begins = {e.order for e in events.of("horovod.stalled")}
    lines: list[LogEvent] = []
    for event in events.of(*_KINDS):
        if event.order in begins and lines and lines[-1].order != event.order:
            yield tuple(lines)
            lines = []
        if event.kind != "horovod.stalled":
            lines.append(event)
    yield tuple(lines)


def missed_by(lines: Sequence[LogEvent], of_two: bool) -> Mapping[str, frozenset[int]]:
    """Tensor -> the ranks that did not submit it. A list that was cut short ("...") tells nothing of the rest, but of two ranks one has submitted it."""
    found: dict[str, set[int]] = {}
    for event in lines:
        if event.kind == "horovod.missing":
            found.setdefault(event["tensor"], set()).update(_ranks(event["missing"]))
        elif (of_two or not event["tensors"].rstrip().endswith("...")) and (rank := event.number("rank_")) is not None:
            for tensor in event["tensors"].split(","):
                found.setdefault(tensor.strip(), set()).add(rank)
    told = (match for e in lines if e.kind == "horovod.ready" for match in _READY.finditer(e.text))
    ready = {match[1]: _ranks(match[2]) for match in told}
    everybody = set().union(*ready.values())
    found.update({tensor: everybody - ranks for tensor, ranks in ready.items()})
    return {tensor: frozenset(ranks) for tensor, ranks in found.items()}


def _ranks(text: str) -> set[int]:
    return {int(r) for r in text.split(",") if r.strip().isdecimal()}
