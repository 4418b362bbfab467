"""Time stamps as programs print them -> nanoseconds since 1970."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# The year of stamps without one where nothing tells it: a leap year, so that every day exists, and visibly not meant.
NO_YEAR = 2000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_QUARTER_NS = 900 * SECOND_NS
_BACK_NS = 3600 * SECOND_NS

_TIME = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_MONTH = r"(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_ISO = re.compile(
    r"(?P<y>20\d\d|19[789]\d)[-/](?P<m>\d\d)[-/](?P<d>\d\d)[T_ ](?P<h>\d\d):(?P<mi>\d\d)(?::(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?)?"
    r"(?P<z> ?(?:Z\b|UTC\b|GMT\b)|[+-]\d\d:?\d\d\b| [+-]\d\d:?\d\d\b)?"
)
_US = re.compile(r"(?P<m>\d\d)/(?P<d>\d\d)/(?P<y>20\d\d) " + _TIME)
_COMPACT = re.compile(r"(?P<y>20\d\d)(?P<m>[01]\d)(?P<d>[0-3]\d)[T_ -]" + _TIME)
_SHORT = re.compile(r"(?P<m>[01]\d)-(?P<d>[0-3]\d) " + _TIME)
_CLOCK = re.compile(_TIME + r"(?![\d:])")
_EPOCH = re.compile(r"(?P<epoch>1\d{9})[.,](?P<f>\d{1,9})(?!\d)")
_SYSLOG = re.compile(_MONTH + r" {1,2}(?P<d>\d{1,2}) " + _TIME)
_ASCTIME = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? " + _MONTH + r" {1,2}(?P<d>\d{1,2}) " + _TIME + r"(?P<z> UTC| GMT)?"
    r"(?: [A-Z]{2,5})? (?P<y>20\d\d)"
)
_GLOG = re.compile(r"\[?[DIWEFCV](?P<md>\d{3,4}) {1,2}" + _TIME)
_BY_DIGIT = (_ISO, _US, _COMPACT, _SHORT, _EPOCH, _CLOCK)
_BY_LETTER = (_SYSLOG, _ASCTIME)


@dataclass(frozen=True, slots=True)
class Stamp:
    """One time as printed. `in_day_ns` counts from midnight; `zone_s` is the distance to UTC, None where not told.

    `year` and `month` are None where they are not printed; `step_ns` is the smallest difference that the form can show.
    """

    year: int | None
    month: int | None
    day: int
    in_day_ns: int
    zone_s: int | None
    step_ns: int

    @property
    def has_date(self) -> bool:
        """Whether the day is told, with or without the year."""
        return self.month is not None


@dataclass(frozen=True, slots=True)
class FileClock:
    """How the times of one log were made out. `step_ns`: how fine they are.

    `year_known`, `zone_known`: whether the log (or the file's date) tells them; else times are comparable only within the log.
    `date_known`: its lines tell the day. `is_dated_by_file`: they do not tell the year, or the day, and the file's date may be
    that of a copy, so the times are not comparable with those of another log before they are brought near to them.
    """

    year_known: bool = False
    date_known: bool = False
    zone_known: bool = False
    step_ns: int = SECOND_NS
    is_dated_by_file: bool = False


def read_stamp(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """The stamp that begins at a position, and where it ends."""
    if at >= len(text):
        return None
    first = text[at]
    forms: Sequence[re.Pattern[str]]
    if first.isdigit():
        forms = _BY_DIGIT
    elif first in "DIWEFCV[" and (glog := _GLOG.match(text, at)):
        found = _of_glog(glog)
        return (found, glog.end()) if found else None
    elif first in "JFMASOND" or first in "TW":
        forms = _BY_LETTER
    else:
        return None
    for form in forms:
        if match := form.match(text, at):
            stamp = _stamp(match)
            return (stamp, match.end()) if stamp else None
    return None


def _of_glog(match: re.Match[str]) -> Stamp | None:
    date_text, hour, minute, second, digits = match.groups()
    month, day = divmod(int(date_text), 100)
    return _checked(None, month, day, (hour, minute, second, digits), None)


def _stamp(match: re.Match[str]) -> Stamp | None:
    parts = match.groupdict()
    if parts.get("epoch"):
        whole, rest = divmod(int(parts["epoch"]), 86_400)
        day = date.fromordinal(_EPOCH_DAY + whole)
        fraction, step = _fraction(parts["f"])
        return Stamp(day.year, day.month, day.day, rest * SECOND_NS + fraction, 0, step)
    named = parts.get("mon")
    month = MONTHS.index(named.lower()) + 1 if named else int(parts.get("m") or 0)
    day_number = int(parts.get("d") or 1)
    year = int(parts["y"]) if parts.get("y") else None
    if match.re is _US and month > 12:
        month, day_number = day_number, month
    clock = (parts["h"], parts["mi"], parts["s"], parts["f"])
    return _checked(year, month or None, day_number, clock, parts.get("z"))


def _checked(
    year: int | None, month: int | None, day: int, clock: Sequence[str | None], zone: str | None
) -> Stamp | None:
    hour, minute, second = int(clock[0] or 0), int(clock[1] or 0), int(clock[2] or 0)
    if hour > 23 or minute > 59 or second > 60 or (month is not None and _ordinal(year or NO_YEAR, month, day) is None):
        return None
    fraction, step = _fraction(clock[3])
    if clock[2] is None:
        step = 60 * SECOND_NS
    in_day = (hour * 3600 + minute * 60 + second) * SECOND_NS + fraction
    return Stamp(year, month, day, in_day, _zone(zone), step)


def _fraction(digits: str | None) -> tuple[int, int]:
    if not digits:
        return 0, SECOND_NS
    step: int = 10 ** (9 - len(digits))
    return int(digits) * step, step


def _zone(text: str | None) -> int | None:
    bare = (text or "").strip().replace(":", "")
    if not bare:
        return None
    if bare[0] not in "+-":
        return 0
    seconds = int(bare[1:3]) * 3600 + int(bare[3:5]) * 60
    return seconds if bare[0] == "+" else -seconds


@cache
def _ordinal(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def resolve(
    lines: Sequence[Sequence[Stamp]], modified_ns: int | None = None
) -> tuple[tuple[int | None, ...], FileClock]:
    """The time of each line of one log, from the stamps on it (outermost first), and how it was made out.

    `modified_ns`: when the file was last written; tells the year and the day where no stamp does. A stamp with a zone goes
    before one without; where both stand on one line they tell the zone of the others. Clocks that pass midnight or New Year go on.
    """
    zone_s = _learnt_zone(lines)
    chosen = [_chosen(stamps) for stamps in lines]
    used = [s for s in chosen if s is not None]
    if not used:
        return (None,) * len(lines), FileClock()
    anchor, known = _anchor(used, modified_ns)
    resolver = _Resolver(anchor, zone_s or 0)
    times = tuple(None if s is None else resolver.take(s) for s in chosen)
    date_known = any(s.has_date for s in used)
    by_file = modified_ns is not None and all(s.year is None for s in used)
    if modified_ns is not None and not date_known:
        times = _ending_at(times, modified_ns)
    zoned = zone_s is not None or all(s.zone_s is not None for s in used)
    steps = Counter(s.step_ns for s in used).most_common(1)
    return times, FileClock(known, date_known, zoned, steps[0][0], by_file)


def year_of(time_ns: int) -> int:
    """The year of a time."""
    return date.fromordinal(_EPOCH_DAY + time_ns // DAY_NS).year


def in_year(time_ns: int, year: int) -> int:
    """The same day of the year and time of day in another year."""
    day = date.fromordinal(_EPOCH_DAY + time_ns // DAY_NS)
    ordinal = _ordinal(year, day.month, day.day)
    if ordinal is None:  # 29 February
        ordinal = _ordinal(year, 3, 1) or 0
    return ordinal * DAY_NS + time_ns % DAY_NS


def _ending_at(times: Iterable[int | None], modified_ns: int) -> tuple[int | None, ...]:
    found = tuple(times)
    last = next(t for t in reversed(found) if t is not None)
    shift = round((modified_ns - last) / DAY_NS) * DAY_NS
    return tuple(None if t is None else t + shift for t in found)


def _chosen(stamps: Sequence[Stamp]) -> Stamp | None:
    if len(stamps) < 2:
        return stamps[0] if stamps else None
    return min(stamps, key=lambda s: (s.zone_s is None, not s.has_date, s.step_ns))


def _learnt_zone(lines: Sequence[Sequence[Stamp]]) -> int | None:
    """The zone of stamps without one, where they stand beside stamps with one: in whole quarters of an hour."""
    found: Counter[int] = Counter()
    for stamps in lines:
        if len(stamps) < 2:
            continue
        zoned = next((s for s in stamps if s.zone_s is not None), None)
        bare = next((s for s in stamps if s.zone_s is None), None)
        if zoned is None or bare is None or zoned.zone_s is None:
            continue
        difference = bare.in_day_ns - (zoned.in_day_ns - zoned.zone_s * SECOND_NS)
        quarters = round(difference / _QUARTER_NS)
        if abs(difference - quarters * _QUARTER_NS) < _QUARTER_NS // 3:
            found[(quarters + 48) % 96 - 48] += 1
    if not found:
        return None
    quarters, count = found.most_common(1)[0]
    return quarters * 900 if count >= 0.8 * found.total() else None


def _anchor(stamps: Sequence[Stamp], modified_ns: int | None) -> tuple[int, bool]:
    """A time near the first stamp, and whether the year is known."""
    for stamp in stamps:
        if stamp.year is not None and stamp.month is not None:
            return (_ordinal(stamp.year, stamp.month, stamp.day) or 0) * DAY_NS + stamp.in_day_ns, True
    if modified_ns is not None:
        return modified_ns, True
    dated = next((s for s in stamps if s.month is not None), None)
    if dated is None or dated.month is None:
        return (_ordinal(NO_YEAR, 1, 1) or 0) * DAY_NS + stamps[0].in_day_ns, False
    return (_ordinal(NO_YEAR, dated.month, dated.day) or 0) * DAY_NS + dated.in_day_ns, False


class _Resolver:
    """Turns stamps into times, each near the one before."""

    def __init__(self, anchor_ns: int, zone_s: int) -> None:
        self._last = anchor_ns
        self._zone_s = zone_s

    def take(self, stamp: Stamp) -> int:
        zone_ns = (self._zone_s if stamp.zone_s is None else stamp.zone_s) * SECOND_NS
        if stamp.month is None:
            found = self._same_clock(stamp.in_day_ns - zone_ns)
        elif stamp.year is not None:
            found = (_ordinal(stamp.year, stamp.month, stamp.day) or 0) * DAY_NS + stamp.in_day_ns - zone_ns
        else:
            found = self._nearest_year(stamp, zone_ns)
        self._last = found
        return found

    def _same_clock(self, in_day_ns: int) -> int:
        """The next day after midnight; a little backwards is only a line that was written late."""
        start = self._last - _BACK_NS
        return start + (in_day_ns - start) % DAY_NS

    def _nearest_year(self, stamp: Stamp, zone_ns: int) -> int:
        year = year_of(self._last)
        days = [_ordinal(y, stamp.month or 1, stamp.day) for y in (year - 1, year, year + 1)]
        times = [d * DAY_NS + stamp.in_day_ns - zone_ns for d in days if d is not None]
        return min(times, key=lambda t: abs(t - self._last)) if times else self._last
