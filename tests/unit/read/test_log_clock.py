"""Times as programs print them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from unhang.model import LogLine
from unhang.read.logs.clock import NO_YEAR, SECOND_NS, in_year, read_stamp, resolve, year_of
from unhang.read.output_log import parse_output

DAY = datetime(2025, 2, 18, 2, 54, 1, tzinfo=UTC)


def ns(*parts: int, fraction_ns: int = 0) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * SECOND_NS + fraction_ns  # type: ignore[arg-type, misc]


def times(*lines: str, modified_ns: int | None = None) -> list[int | None]:
    return [line.time_ns for line in parse_output("\n".join(lines).encode(), modified_ns=modified_ns).lines]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2025-02-18T02:54:01.123Z x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=123_000_000)),
        ("2025-02-18T03:54:01+01:00 x", ns(2025, 2, 18, 2, 54, 1)),
        ("2025-02-17T18:54:01.5-0800 x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=500_000_000)),
        ("2025-02-18 02:54 x", ns(2025, 2, 18, 2, 54)),
        ("2025/02/18 02:54:01 x", ns(2025, 2, 18, 2, 54, 1)),
        ("[2025-02-18 02:54:01,250] [INFO] x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=250_000_000)),
        ("[2025-02-18 02:54:01 TP3] x", ns(2025, 2, 18, 2, 54, 1)),
        ("02/18/2025 02:54:01 - INFO - x", ns(2025, 2, 18, 2, 54, 1)),
        ("1739847241.25 x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=250_000_000)),
        ("[1739847241.250000] [node-a:17:0] x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=250_000_000)),
        ("Tue Feb 18 02:54:01 2025[1,3]<stdout>:x", ns(2025, 2, 18, 2, 54, 1)),
        ("[Tue Feb 18 02:54:01 2025] NVRM: Xid", ns(2025, 2, 18, 2, 54, 1)),
        ("[NeMo I 2025-02-18 02:54:01 nemo_logging:349] x", ns(2025, 2, 18, 2, 54, 1)),
        ("[INFO|trainer.py:1] 2025-02-18 02:54:01,123 >> x", ns(2025, 2, 18, 2, 54, 1, fraction_ns=123_000_000)),
        ("no time here", None),
        ("2025-13-45 02:54:01 x", None),
        ("2025-02-18 25:61:01 x", None),
        ("[ 4711.123456] uptime of a kernel is no time of day", None),
        ("[E ProcessGroupNCCL.cpp:737] x", None),
    ],
)
def test_forms_of_times(line: str, expected: int | None) -> None:
    assert times(line) == [expected]


@pytest.mark.parametrize(
    ("line", "month", "day", "step_ns"),
    [
        ("[rank0]:[E1122 02:49:14.137965351 ProcessGroupNCCL.cpp:616] x", 11, 22, 1),
        ("[rank0]:[E228 02:49:14.137965351 ProcessGroupNCCL.cpp:616] x", 2, 28, 1),
        ("W1122 02:49:14.631636 247807 torch/x.py:723] x", 11, 22, 1000),
        ("Jul 13 02:49:14 x", 7, 13, SECOND_NS),
        ("INFO 11-01 02:49:14 x.py:1] x", 11, 1, SECOND_NS),
    ],
)
def test_times_without_a_year(line: str, month: int, day: int, step_ns: int) -> None:
    log = parse_output(line.encode())
    assert (log.lines[0].time_ns or 0) // SECOND_NS * SECOND_NS == ns(NO_YEAR, month, day, 2, 49, 14)
    assert (log.clock.year_known, log.clock.zone_known, log.clock.step_ns) == (False, False, step_ns)
    of_file = parse_output(line.encode(), modified_ns=ns(2026, month, day, 3))
    assert year_of(of_file.lines[0].time_ns or 0) == 2026
    assert of_file.clock.year_known
    beside = parse_output(f"{line}\n2024-{month:02d}-{day:02d} 02:49:15 x".encode())
    assert year_of(beside.lines[0].time_ns or 0) == 2024


def test_a_clock_passes_midnight() -> None:
    found = times(
        "2025-02-18 23:59:58 x", "[default0]:23:59:59 INFO", "[default0]:00:00:02 INFO", "[default0]:23:59:59 INFO"
    )
    assert found == [
        ns(2025, 2, 18, 23, 59, 58),
        ns(2025, 2, 18, 23, 59, 59),
        ns(2025, 2, 19, 0, 0, 2),
        ns(2025, 2, 18, 23, 59, 59),
    ]


def test_a_clock_passes_new_year() -> None:
    found = times(
        "[W1231 23:59:59.000000000 a.cpp:1] x", "[W101 00:00:01.000000000 a.cpp:1] x", modified_ns=ns(2026, 1, 1, 1)
    )
    assert found == [ns(2025, 12, 31, 23, 59, 59), ns(2026, 1, 1, 0, 0, 1)]


def test_times_of_day_end_when_the_file_was_written() -> None:
    found = times("22:00:00 INFO a", "02:00:00 INFO b", modified_ns=ns(2026, 3, 5, 2, 0, 3))
    assert found == [ns(2026, 3, 4, 22), ns(2026, 3, 5, 2)]


def test_a_zone_is_learnt_where_both_forms_stand_on_a_line() -> None:
    found = times(
        "2025-02-18T10:00:00.5Z [rank1]:[E218 02:00:00.400000000 a.cpp:1] x",
        "[rank1]:[E218 02:00:07.000000000 a.cpp:1] y",
    )
    assert found == [ns(2025, 2, 18, 10, fraction_ns=500_000_000), ns(2025, 2, 18, 10, 0, 7)]


def test_an_impossible_mixture_is_survived() -> None:
    stamps = [read_stamp(text) for text in ("0229 11:00:00", "[E229 11:00:00.5 x", "Feb 29 11:00:00")]
    found, clock = resolve([[s[0]] if s else [] for s in stamps], modified_ns=ns(2026, 3, 1, 0))
    assert found[0] is None
    assert clock.year_known
    assert year_of(in_year(ns(2024, 2, 29, 1), 2025)) == 2025
    assert resolve([[], []])[0] == (None, None)


def test_lines_keep_their_times() -> None:
    lines: tuple[LogLine, ...] = parse_output(b"a\n2025-02-18T02:54:01Z b\nc").lines
    assert [(x.text, x.time_ns) for x in lines] == [("a", None), ("b", int(DAY.timestamp()) * SECOND_NS), ("c", None)]
