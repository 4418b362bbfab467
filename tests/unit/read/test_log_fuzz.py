"""Whatever a file holds: readers of logs neither raise anything but `UnreadableInput` nor take for ever."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.logs import corpus

from unhang.errors import UnreadableInput
from unhang.read.logs import Pattern, all_patterns, matches, source
from unhang.read.logs.case import log_case
from unhang.read.logs.scan import anchors
from unhang.read.logs.scan_engines import GramEngine
from unhang.read.logs.source import FollowedLog, read_output

CPU_SECONDS, LINE_CPU_SECONDS = 50, 3
MAX_LINE = 4000
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PREFIXES = [
    "[rank3]: ",
    "[default1]:",
    "12: ",
    "[1,3]<stderr>:",
    "(W pid=9, ip=10.0.0.2) ",
    "2025-02-18T02:54:01.123Z ",
]
OF_KIND = corpus.examples()
EXAMPLES = sorted({line for of_kind in OF_KIND.values() for line in of_kind})
LITERALS = [anchor.word for anchor in anchors()]
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(LITERALS),
    st.sampled_from(EXAMPLES).map(lambda line: line.encode("utf-8", "replace")),
    st.sampled_from(
        [b"\x1b[", b"\x1b]0;", b"\x1b[31m", b"\r", b"\r\n", b"\n", b"\0", b"\xff\xfe", b"\xc3", b"{", b"}\n"]
    ),
    st.lists(st.sampled_from(PREFIXES), max_size=30).map(lambda parts: "".join(parts).encode()),
    st.sampled_from([b'{"log": "', b'", "stream": "stderr"}\n', b"100%|###| 3/3 [00:01<00:02]", b"x" * 9000]),
)
CONTENT = st.lists(GARBAGE, max_size=40).map(b"".join)


def in_child(work: Callable[[], None]) -> None:
    """Does it in a child of ours that ends itself after so much CPU time; asserts that it ended well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            work()
            code = 0
        except BaseException:  # noqa: BLE001  whatever it is, a child of a test must not go on as pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU), "it took too much CPU time"
    assert os.waitstatus_to_exitcode(status) == 0


@SETTINGS
@given(content=CONTENT, cut=st.integers(0, 4))
def test_any_content_is_read(tmp_path: Path, content: bytes, cut: int) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content[: len(content) - cut])
    for whole_bytes in (1 << 20, 16):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(source, "WHOLE_BYTES", whole_bytes)
            try:
                log = read_output(path)
            except UnreadableInput:  # it began as a compressed file would
                continue
        assert log.omitted_lines >= 0
        assert all("\n" not in line.text for line in log.lines)


@SETTINGS
@given(content=CONTENT, encoding=st.sampled_from(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]))
def test_any_encoding_is_read(tmp_path: Path, content: bytes, encoding: str) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content.decode("utf-8", "replace").encode(encoding, "replace")[:-1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(source, "WHOLE_BYTES", 16)
        try:
            read_output(path)
        except UnreadableInput:
            assert content[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")


@SETTINGS
@given(content=CONTENT)
def test_any_text_makes_a_case(content: bytes) -> None:
    case = log_case(content.decode("utf-8", "replace"))
    assert all(event.kind for event in case.events)


@SETTINGS
@given(texts=st.lists(st.tuples(st.integers(1, 9), st.text(max_size=60)), max_size=30))
def test_any_lines_can_be_followed(texts: list[tuple[int, str]]) -> None:
    log = FollowedLog(make=GramEngine)
    log.take([(number, text.replace("\n", " ")) for number, text in texts])
    assert log.output().lines or not any(text for _, text in texts)


def adversarial(pattern: Pattern) -> Iterable[str]:
    """Lines that lead an expression astray that can be led astray, as long as lines get: they are cut before they are matched."""
    found = []
    for example in (e for e in OF_KIND[pattern.kind] if pattern.compiled.search(e)):
        found.append(example * (MAX_LINE // len(example) + 1))
        found += [
            example[:cut] + filler * MAX_LINE
            for cut in (len(example) // 2, len(example) - 1)
            for filler in ("a", "0", " ")
        ]
        words = example.split(" ")
        found += [" ".join(word * 40 for word in words), "  ".join(words * 50)]
    for anchor in pattern.anchors:
        found += [
            anchor + filler * MAX_LINE
            for filler in ("a", "0", " ", "[", "(", ",", ":", "a ", "0,", '"', "\t", "=1 ", "/")
        ]
        found += [(filler * MAX_LINE)[: MAX_LINE - len(anchor)] + anchor for filler in ("a", "0", " ", "[", "a.", "1-")]
        found.append(anchor * (MAX_LINE // len(anchor)))
    return dict.fromkeys(line[:MAX_LINE] for line in found)


PARTS = 16


class Astray(Exception):
    """An expression used up its CPU time on one line."""


def stop_search(_signal: int, _frame: object) -> None:
    raise Astray


@pytest.mark.parametrize("part", range(PARTS))
def test_no_expression_can_be_led_astray(part: int, tmp_path: Path) -> None:
    """Each line has `LINE_CPU_SECONDS`, where a sound expression needs a millisecond: what fails here takes for ever."""
    named = tmp_path / "astray"

    def work() -> None:
        signal.signal(signal.SIGVTALRM, stop_search)
        astray = {}
        for pattern in all_patterns()[part::PARTS]:
            for line in adversarial(pattern):
                signal.setitimer(signal.ITIMER_VIRTUAL, LINE_CPU_SECONDS)
                try:
                    pattern.compiled.search(line)
                except Astray:
                    astray[pattern.kind, pattern.regex] = f"{line[:60]}...{line[-60:]}"
                    break
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        named.write_text("\n".join(f"{kind} {regex} on {line}" for (kind, regex), line in astray.items()))

    in_child(work)
    assert named.read_text() == ""


def test_lines_full_of_anchors_are_matched() -> None:
    lines = ["".join(word.decode() for word in LITERALS[i:]) for i in range(0, len(LITERALS), 97)]
    in_child(lambda: [list(matches(line[:MAX_LINE])) for line in lines] and None)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"x" * (6 << 20), id="a line without end"),
        pytest.param(b"\r" * (6 << 20), id="nothing but carriage returns"),
        pytest.param(b"\n" * (6 << 20), id="nothing but newlines"),
        pytest.param(b"\0" * (6 << 20), id="nothing but zeros"),
        pytest.param(b"\x1b[31m" * (1 << 20), id="nothing but colours"),
        pytest.param(b"\x1b]0;" * (1 << 20), id="colours that never end"),
        pytest.param(b"[rank3]: " * (600 << 10), id="prefixes on prefixes"),
        pytest.param(b"Traceback (most recent call last):\n" * (130 << 10), id="tracebacks without end"),
        pytest.param(b"Root Cause (first observed failure):\n[0]:\n" * (110 << 10), id="summaries without end"),
        pytest.param(b"".join(word + b"\n" for word in LITERALS) * 100, id="every anchor, many times"),
        pytest.param(b"{" * (6 << 20), id="objects within objects"),
        pytest.param(b"1%| |" * (1 << 20), id="bars glued to bars"),
        pytest.param("\u20ac".encode("utf-16-le") * (3 << 20), id="wide characters"),
    ],
)
def test_monstrous_files_are_read(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE_BYTES", 1 << 20)
    assert len(content) > 1 << 20
    path = tmp_path / "job.log"
    path.write_bytes(content)

    def work() -> None:
        log = read_output(path)
        assert len(log.lines) <= 25_000
        assert all(len(line.text) <= MAX_LINE for line in log.lines)

    in_child(work)
