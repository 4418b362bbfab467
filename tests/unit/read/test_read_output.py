"""A job's own output."""

from __future__ import annotations

import pytest

from unhang.model import Frame
from unhang.read import output_log
from unhang.read.output_log import parse_output

TRACE = """Traceback (most recent call last):
  File "/home/me/t.py", line 12, in <module>
    main()
  File "/home/me/t.py", line 9, in main
    raise ValueError('bad batch')
ValueError: bad batch
""".splitlines()


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank{}]: ",
        "[default{}]:",
        "{}: ",
        "[1,{}]<stderr>:",
        "(pid=10{}, ip=10.0.0.1) ",
        "(Worker pid=10{}) [rank{}]: ",
    ],
)
def test_interleaved_tracebacks_of_two_ranks(prefix):
    lines = [prefix.replace("{}", str(rank)) + line for line in ["start", *TRACE] for rank in (0, 3)]
    log = parse_output("\n".join(lines).encode(), ranks_by_pid={100: 0, 103: 3})
    assert [(rank, e.type, e.message) for rank, e in log.errors] == [(r, "ValueError", "bad batch") for r in (0, 3)]
    assert log.errors[0][1].frames == (Frame("/home/me/t.py", 9, "main"), Frame("/home/me/t.py", 12, "<module>"))
    assert [line.text for line in log.lines[:2]] == ["start", "start"]
    assert [line.rank for line in log.lines[:2]] == [0, 3]
    assert log.lines[5].source.line == 6


def test_colours_progress_bars_and_encodings():
    bar = b"  0%|   | 0/9\r 50%|## | 4/9\r100%|###| 9/9\r\n"
    log = parse_output(b"\x1b[1;31mError\x1b[0m: \x1b]0;title\x07caf\xc3\xa9 \xff\n" + bar + b"last")
    assert [line.text for line in log.lines] == ["Error: café \ufffd", "100%|###| 9/9", "last"]
    assert parse_output("Zeile\n".encode("utf-16")).lines[0].text == "Zeile"
    assert parse_output(b"").lines == ()


def test_a_number_before_a_colon_is_no_rank_in_ordinary_output():
    log = parse_output(b"epoch\n3: loss 2\n4: loss 1\nend\n")
    assert {line.rank for line in log.lines} == {None}
    assert log.lines[1].text == "3: loss 2"


def test_chained_and_ignored_exceptions():
    chained = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 1",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *TRACE,
        "Exception ignored in: <function X.__del__>",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in __del__',
        "TypeError: late",
    ]
    ((rank, error),) = parse_output("\n".join(chained).encode(), rank=5).errors
    assert (rank, error.type) == (5, "ValueError")


def test_message_of_many_lines_belongs_to_the_exception_only_where_one_rank_writes():
    lines = [*TRACE, "ncclSystemError: bad", "next"]
    alone = parse_output("\n".join(f"[rank1]: {line}" for line in lines).encode())
    mixed = parse_output("\n".join(lines).encode())
    assert alone.errors[0][1].message == "bad batch\nncclSystemError: bad\nnext"
    assert mixed.errors[0][1].message == "bad batch"


SUMMARY = """[default1]:Traceback (most recent call last):
[default1]:  File "/home/me/t.py", line 9, in main
[default1]:ValueError: bad batch
E1121 09:35:21 api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 7035) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/x/torch/distributed/run.py", line 1019, in run
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \

============================================================
tr.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_09:35:20
  host      : localhost
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 7034)
  error_file: /tmp/error.json
  traceback : Traceback (most recent call last):
    File "/tmp/rd/tr.py", line 8, in main
  ValueError: invalid
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:35:19
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 7035)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7035
============================================================
[default0]:after
"""


def test_torchrun_summary():
    log = parse_output(SUMMARY.encode())
    assert sorted(log.exits) == [2, 9]
    killed, failed = log.exits[2], log.exits[9]
    assert (killed.code, killed.pid, killed.is_root, killed.error_file) == (-9, 7035, True, "")
    assert (failed.code, failed.pid, failed.is_root, failed.error_file) == (1, 7034, False, "/tmp/error.json")
    assert failed.time_ns - killed.time_ns == 10**9
    assert [(rank, e.type.rsplit(".")[-1]) for rank, e in log.errors] == [(1, "ValueError"), (None, "ChildFailedError")]
    assert log.lines[-1].text == "after"


def test_other_launchers():
    spawned = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "x.py", line 1, in <module>',
            "torch.multiprocessing.spawn.ProcessRaisedException: ",
            "",
            "-- Process 4 terminated with the following error:",
            *TRACE,
        ]
    )
    assert [rank for rank, _ in parse_output(spawned.encode()).errors] == [None, 4]
    line = b"torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\n"
    assert parse_output(line).exits[2].code == -9
    assert parse_output(line.replace(b"signal SIGKILL", b"exit code 3")).exits[2].code == 3


def test_long_output_keeps_what_speaks_of_trouble(monkeypatch):
    monkeypatch.setattr(output_log, "MAX_LINES", 300)
    lines = [f"step {i}" for i in range(1000)]
    lines[10] = "RuntimeError: boom"
    lines[20:26] = TRACE
    log = parse_output("\n".join(lines).encode())
    texts = [line.text for line in log.lines]
    assert texts[0] == "RuntimeError: boom"
    assert "    main()" in texts
    assert texts[-200:] == lines[-200:]
    assert log.omitted_lines == 1000 - len(texts)
    assert log.lines[0].source.line == 11


def test_very_long_lines_are_cut():
    assert len(parse_output(b"error " + b"x" * 100_000).lines[0].text) == output_log.MAX_LINE_CHARS
