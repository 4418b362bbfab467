"""The lines that may matter in a log of any size: three engines, one result."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from unhang.errors import UnreadableInput
from unhang.model import LogLine
from unhang.read.logs import matches, source
from unhang.read.logs import scan as scan_module
from unhang.read.logs.decode import lines_of
from unhang.read.logs.scan import Anchor, Scanned, Scanner, anchors, blocks, scan
from unhang.read.logs.scan_engines import (
    Finder,
    GramEngine,
    HyperscanEngine,
    Make,
    PlainEngine,
    has_hyperscan,
    words_in_lines,
)
from unhang.read.logs.source import read_output, read_outputs
from unhang.read.output_log import parse_lines, parse_output

ENGINES = [
    pytest.param(GramEngine, id="numpy"),
    pytest.param(PlainEngine, id="plain"),
    pytest.param(
        HyperscanEngine, id="hyperscan", marks=pytest.mark.skipif(not has_hyperscan(), reason="hyperscan is missing")
    ),
]
FAST = [engine for engine in ENGINES if engine.id != "plain"]
TEXTS = [b"abcd", b"bcde", b"abcdabcd", b"aaaa", b"aaaaa", b"fivex", b"sixsix", b"seven77", b"Traceback (most recent"]
TIMEOUT = (
    b"[rank1]:[E228 02:40:22.57 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) ran for 1800042 "
    b"milliseconds before timing out."
)
TRACE = b"""Traceback (most recent call last):
  File "/home/me/t.py", line 12, in <module>
    main()
  File "/home/me/t.py", line 9, in main
    raise ValueError('bad batch')
ValueError: bad batch
"""


def places(block: bytes, texts: Iterable[bytes]) -> list[tuple[int, int]]:
    return sorted(
        (place, number)
        for number, text in enumerate(texts)
        for place in range(len(block))
        if block.startswith(text, place)
    )


def filler(lines: int, seed: int = 0) -> bytes:
    draw = random.Random(seed)
    return b"".join(
        b"2026-03-01 10:%02d INFO step %d of %d\n" % (i % 60, i, draw.randrange(10**6)) for i in range(lines)
    )


def scanned(data: bytes, make: Make, wanted: list[Anchor] | None = None, size: int = 1 << 20) -> Scanned:
    scanner = Scanner(make, wanted)
    stream = io.BytesIO(data)
    for block, end in blocks(lambda n: stream.read(min(n, size))):
        scanner.take(block, end)
    return scanner.result()


@pytest.mark.parametrize("make", ENGINES)
def test_an_engine_finds_every_place_of_every_text(make: Make) -> None:
    draw = random.Random(1)
    engine = Finder(TEXTS, make)
    for size in (0, 1, 3, 4, 5, 63, 64, 4000):
        alphabet = b"abcde\nfivxsn7 \x00\xff"
        block = bytes(draw.choice(alphabet) for _ in range(size)) + b"".join(draw.choices(TEXTS, k=size // 20))
        assert engine.hits(block) == places(block, TEXTS)
        assert engine.hits(block[: size // 2]) == places(block[: size // 2], TEXTS)


@pytest.mark.parametrize("make", ENGINES)
def test_of_a_quiet_text_the_first_place_of_each_block_is_told(make: Make) -> None:
    engine = Finder(TEXTS, make)
    engine.quieten([0, 3])
    there = b"bcde..abcd..abcdabcd..aaaaaa"
    expected = [(0, 1), (6, 0), (12, 2), (22, 3), (22, 4), (23, 4)]
    for _ in range(2):
        assert engine.hits(there) == expected
        for _ in range(6):  # the engine looks for a text again that has been absent for a while
            assert engine.hits(b"nothing here, seven77") == [(14, 7)]


@pytest.mark.parametrize("make", ENGINES)
def test_a_crowd_of_places_of_one_gram(make: Make) -> None:
    texts = [b"loss: nan", b"boss", b"gloss is", b"'loss'"]
    block = b"loss: 2.5\n" * 500 + b"loss: nan\nthe gloss is 'loss'\n" + b"loss: 3\n" * 50 + b"loss: nan"
    assert Finder(texts, make).hits(block) == places(block, texts)


def test_blocks_end_with_lines_whatever_the_sizes_of_the_parts() -> None:
    data = filler(40_000) + b"x" * 700_000 + b"\ny" + b"10%|\r" * 200_000 + b"last"
    stream, small = io.BytesIO(data), io.BytesIO(data)
    found = list(blocks(stream.read))
    assert [(b[:end], end) for b, end in found] == [
        (b[:end], end) for b, end in blocks(lambda n: small.read(min(n, 1237)))
    ]
    assert b"".join(block[:end] for block, end in found) == data
    assert all(len(block) <= scan_module.BLOCK_BYTES for block, _ in found)
    assert sum(not block[:end].endswith((b"\n", b"\r")) for block, end in found) == 3


@pytest.mark.parametrize("make", FAST)
def test_numbers_of_lines_are_exact(make: Make) -> None:
    data = filler(20_000) + TIMEOUT + b"\r\n" + filler(30_000, 1) + TRACE + filler(20_000, 2) + b"no newline"
    found = scanned(data, make)
    lines = data.split(b"\n")
    assert all(lines[number - 1] == text for number, text in found.lines)
    assert found.total_lines == len(lines) == len(list(lines_of(data)))
    assert (20_001, TIMEOUT + b"\r") in found.lines
    numbers = [number for number, _ in found.lines]
    assert numbers == sorted(set(numbers))
    assert numbers[:200] == list(range(1, 201))
    assert numbers[-400:] == list(range(len(lines) - 399, len(lines) + 1))
    assert set(range(50_002, 50_002 + 121)) <= set(numbers)
    assert found.omitted_lines == len(lines) - len(numbers)
    assert len(numbers) < 200 + 400 + 130


@pytest.mark.parametrize("make", FAST)
def test_a_flood_is_bounded_and_its_end_is_kept(make: Make) -> None:
    word = Anchor(b"flood of", 50, 20)
    lines = [b"line %d, a flood of lines" % i for i in range(200_000)]
    lines[150_000] = b"a rare word"
    found = scanned(b"\n".join(lines) + b"\n", make, [word, Anchor(b"rare word")])
    numbers = [number for number, _ in found.lines]
    flood = [n for n in numbers[200:-400] if n != 150_001]
    assert numbers[:200] == list(range(1, 201))
    assert 150_001 in numbers
    assert 10 <= len(flood) <= 20  # one of each block
    assert found.flooded == ("flood of",)
    assert found.total_lines == 200_000
    assert found.omitted_lines == 200_000 - len(numbers)


def test_both_engines_keep_the_same_lines() -> None:
    if not has_hyperscan():
        pytest.skip("hyperscan is missing")
    draw = random.Random(3)
    words = [anchor.word for anchor in anchors()]
    parts = []
    for i in range(60_000):
        drawn = draw.random()
        text = b" ".join(draw.choices(words, k=draw.randrange(1, 3))) if drawn < 0.05 else b"%x" % draw.getrandbits(200)
        parts.append(b"\x1b[31m%d\x1b[0m %s" % (i, text) if drawn < 0.01 else text)
        if drawn > 0.999:
            parts.append(b"z" * draw.randrange(100_000) + text)
        if 0.4 < drawn < 0.6:
            parts.append(b"warn: NCCL WARN again and again, Error: flood")
    data = b"\n".join(parts)
    one, other = scanned(data, GramEngine), scanned(data, HyperscanEngine, size=5000)
    assert one == other
    assert one.flooded
    assert 1000 < len(one.lines) <= scan_module.MAX_KEPT_LINES


@pytest.mark.parametrize("make", FAST)
def test_lines_of_many_megabytes(make: Make) -> None:
    bars = b"".join(b"%3d%%|###| %d/9999 [00:01<00:02]\r" % (i % 100, i) for i in range(60_000))
    data = b"[rank3]: " + b"x" * 3_000_000 + TIMEOUT + b"y" * 900_000 + b"\n" + bars + TIMEOUT + b"\r" + bars + b"\nend"
    found = scanned(data, make)
    assert found.total_lines == 3
    assert {number for number, _ in found.lines} == {1, 2, 3}
    holders = [(number, text) for number, text in found.lines if b"SeqNum=532339" in text]
    assert [number for number, _ in holders] == [1, 2]
    assert holders[1][1] == TIMEOUT
    assert max(len(text) for _, text in found.lines) <= 16384 + 200


@pytest.mark.parametrize("make", ENGINES)
def test_colours_and_zeros_within_a_word_are_no_hindrance(make: Make) -> None:
    word = b"[Rank 3] Watch\x1b[1;31mdog caught\0 collective\x1b]0;title\x07 operation timeout"
    found = scanned(filler(9000) + word + b"\n" + b"\0" * 600_000 + filler(9000) + b"\x1b[0m", make)
    assert (9001, b"[Rank 3] Watchdog caught collective operation timeout") in found.lines
    assert found.total_lines == 18_002


def test_the_launchers_summary_is_kept_to_its_end() -> None:
    records = b"".join(
        b"[%d]:\n  rank      : %d (local_rank: 0)\n  exitcode  : 1 (pid: 9)\n" % (i, i) for i in range(900)
    )
    text = b"=====================\nt.py FAILED\nFailures:\n" + records + b"=====================\n"
    found = scanned(filler(30_000) + text + filler(30_000), GramEngine)
    kept = {number for number, _ in found.lines}
    assert set(range(30_003, 30_005 + 2700)) <= kept
    assert 30_006 + 2700 not in kept


# Of a file with two jobs the second is judged if the first ended well, which lines in the middle of megabytes do not show.
# Only lines of 942 and 1033 that say nothing show that several processes print there, each with a rank of its own.
NOT_AS_ALONE = ("549.json", "942.json", "950.json", "965.json", "1033.json")
INCIDENTS = [p for p in sorted((Path(__file__).parents[2] / "incidents").glob("*.json")) if p.name not in NOT_AS_ALONE]
AROUND = 500  # more than are kept of the beginning and of the end


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.whole) for part in range(1, 16))])
def test_incidents_in_the_middle_of_a_long_log_are_read_as_alone(part: int) -> None:
    """Where this fails for a new wording: its text belongs to the anchors of a pattern, or to those that `scan` has for readers."""
    around = filler(AROUND)
    for path in INCIDENTS[part::16]:
        log = json.loads(path.read_text())["log"].encode() + b"\n"
        data = around + log + around
        whole, found = parse_output(b"\n" * AROUND + log + filler(50)), scanned(data, GramEngine)
        lines = [(number, line) for number, text in found.lines for line in lines_of(text + b"\n")]
        kept = parse_lines(lines)
        assert [(r, e.type, e.message) for r, e in kept.errors] == [(r, e.type, e.message) for r, e in whole.errors], (
            path
        )
        assert kept.exits == whole.exits, path
        assert told(kept.lines, data) == told(whole.lines, data), path


def told(lines: Iterable[LogLine], data: bytes) -> list[tuple[str, int | None]]:
    last = data.count(b"\n") - AROUND
    return [
        (pattern.kind, line.source.line)
        for line in lines
        if AROUND < (line.source.line or 0) <= last
        for pattern, _ in matches(line.text)
        if not pattern.is_background
    ]


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE_BYTES", 100_000)


def log_bytes() -> bytes:
    return (
        filler(9000) + TIMEOUT + b"\n" + filler(9000) + b"".join(b"[rank2]: " + line for line in TRACE.splitlines(True))
    )


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_large_log_is_read_as_a_small_one_would_be(tmp_path: Path, encoding: str, packed: bool) -> None:
    content = log_bytes().decode().encode(encoding)
    path = tmp_path / "job.log"
    path.write_bytes(gzip.compress(content) if packed else content)
    told: list[tuple[int, int]] = []
    log = read_output(path, on_progress=lambda done, of: told.append((done, of)))
    assert [(rank, error.type) for rank, error in log.errors] == [(2, "ValueError")]
    assert any("SeqNum=532339" in line.text and line.source.line == 9001 for line in log.lines)
    assert len(log.lines) + log.omitted_lines == 18_001 + 6
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.usefixtures("small_limit")
def test_a_compressed_log_that_was_cut_ends_where_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    whole = gzip.compress(log_bytes(), 1)
    path.write_bytes(whole[: len(whole) * 3 // 4])
    log = read_output(path)
    assert any("SeqNum=532339" in line.text for line in log.lines)
    path.write_bytes(whole[:12])
    with pytest.raises(UnreadableInput):
        read_output(path)


def test_a_log_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UNPACKED_BYTES", 10 << 20)
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"0" * (11 << 20)))
    with pytest.raises(UnreadableInput, match="more than 10 MiB"):
        read_output(path)


def test_the_hole_of_a_log_that_was_emptied_under_its_writer_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as f:
        f.truncate(40 << 30)
        f.seek(0, 2)
        f.write(TIMEOUT + b"\n")
    log = read_output(path)
    assert [line.source.line for line in log.lines if "SeqNum=532339" in line.text] == [1]
    assert log.omitted_lines == 0
    os.truncate(path, 20 << 30)
    assert read_output(path).lines == ()


def test_many_files_and_how_far_they_are(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank_{i}.log" for i in range(3)]
    for i, path in enumerate(paths[:2]):
        path.write_bytes(b"[rank%d]: start\n" % i)
    told: list[tuple[int, int]] = []
    found = dict(
        read_outputs([(p, i) for i, p in enumerate(paths)], on_progress=lambda done, of: told.append((done, of)))
    )
    assert isinstance(found[paths[2]], UnreadableInput)
    assert [(p, line.rank) for p in paths[:2] for line in found[p].lines] == [(paths[0], 0), (paths[1], 1)]
    assert told[-1] == (30, 30)


def test_the_stream_is_scanned_through_one_call() -> None:
    done: list[int] = []
    data = filler(9000)
    found = scan(io.BytesIO(data).read, GramEngine, done.append)
    assert found.total_lines == 9000
    assert sum(done) == len(data)


def test_words_of_many_lines_at_once() -> None:
    words = ["Watchdog", "dog caught", "\u00e9t\u00e9 ", "loss"]
    lines = [f"{i} caf\u00e9 \u00e9t\u00e9 loss" if i % 7 == 0 else f"line {i}" for i in range(30_000)]
    lines[20_001] = "loss; Watchdog caught, loss"
    expected = dict.fromkeys(range(0, 30000, 7), ("été ", "loss")) | {20_001: ("loss", "Watchdog", "dog caught")}
    assert dict(words_in_lines(lines, words)) == expected
    assert list(words_in_lines([], words)) == []
