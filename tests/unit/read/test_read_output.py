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
    assert (killed.code, killed.pid, killed.is_root) == (-9, 7035, True)
    assert (failed.code, failed.pid, failed.is_root) == (1, 7034, False)
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
    composer = parse_output(b"ERROR:composer.cli.launcher:Global rank 1 (PID 2814) exited with code 1\n")
    assert (composer.exits[1].code, composer.exits[1].pid) == (1, 2814)
    jsrun = b"ERROR:  One or more process (first noticed rank 3) terminated with signal 9 (core dumped)\n"
    assert parse_output(jsrun).exits[3].code == -9


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


def texts(data: bytes) -> list[str]:
    return [line.text for line in parse_output(data).lines]


def test_bytes_of_any_encoding():
    assert texts("Größe: 3\nä\n".encode("latin-1")) == ["Größe: 3", "ä"]
    assert texts("Größe\nb\n".encode("utf-16-le") + "c\n".encode("utf-16-le")) == ["Größe", "b", "c"]
    assert texts("plain text\nb\n".encode("utf-16-be")) == ["plain text", "b"]
    assert texts(b"a\0b\n\0\0c") == ["ab", "c"]
    assert texts(b"\xef\xbb\xbfa") == ["a"]
    assert texts(b"\x1b_bk;t=1739847241123\x07a\x1b[36m(x pid=1)\x1b[0m b") == ["a(x pid=1) b"]
    assert texts("läuft \x80 weiter".encode() + b"\xff") == ["läuft \x80 weiter\ufffd"]


def test_messages_between_states_of_a_bar_are_kept():
    bar = "\r 10%|# | 1/9 [00:01<00:08, 1.0it/s]\r 20%|## | 2/9 [00:02<00:07, 1.0it/s]"
    between = f"{bar}\r[rank1]: RuntimeError: boom\r 30%|## | 3/9 [00:03<00:06, 1.0it/s]\nend\n"
    log = parse_output(between.encode())
    assert [(x.text, x.rank, x.source.line) for x in log.lines] == [
        ("RuntimeError: boom", 1, 1),
        (" 30%|## | 3/9 [00:03<00:06, 1.0it/s]", None, 1),
        ("end", None, 2),
    ]
    glued = f"{bar}[rank7]:[E221 02:49:14.5 x.cpp:1] dead\r 30%|## | 3/9 [00:03<00:06, 1.0it/s]\n"
    assert (7, "[E221 02:49:14.5 x.cpp:1] dead") in [(x.rank, x.text) for x in parse_output(glued.encode()).lines]
    assert texts(b"one\rtwo\rthree") == ["one", "two", "three"]
    assert texts(b"\r\r\na") == ["", "a"]


DOCKER = [
    '{"log":"[rank2]: Traceback (most recent call last):\\n","stream":"stderr","time":"2025-02-18T02:54:01.5Z"}',
    '{"log":"[rank2]:   File \\"/w/t.py\\", line 3, in f\\n","stream":"stderr","time":"2025-02-18T02:54:01.6Z"}',
    '{"log":"[rank2]: ValueError: bad ","stream":"stderr","time":"2025-02-18T02:54:01.7Z"}',
    '{"log":"[rank2]: out\\n","stream":"stdout","time":"2025-02-18T02:54:01.7Z"}',
    '{"log":"batch\\n","stream":"stderr","time":"2025-02-18T02:54:01.8Z"}',
]


def test_docker_json_with_a_line_in_two_parts():
    log = parse_output("\n".join(DOCKER).encode())
    assert [(x.text, x.rank) for x in log.lines] == [
        ("Traceback (most recent call last):", 2),
        ('  File "/w/t.py", line 3, in f', 2),
        ("out", 2),
        ("ValueError: bad batch", 2),
    ]
    assert [line.source.line for line in log.lines] == [1, 2, 4, 5]
    assert log.lines[1].time_ns - log.lines[0].time_ns == 100_000_000
    assert parse_output("\n".join(DOCKER[:3]).encode()).lines[-1].text == "ValueError: bad "


@pytest.mark.parametrize(
    ("line", "text", "rank", "host"),
    [
        (
            '{"timestamp":"2025-02-18T02:54:01Z","level":"ERROR","message":"boom","rank":3,"hostname":"n1"}',
            "boom",
            3,
            "n1",
        ),
        (
            '{"@timestamp":"2025-02-18T02:54:01Z","message":"boom","kubernetes":{"pod_name":"w-0","host":"n1"}}',
            "boom",
            None,
            "w-0",
        ),
        ('{"event":"boom","level":"error","timestamp":"2025-02-18T02:54:01","rank":"4"}', "boom", 4, ""),
        (
            '{"text":"2025 | boom\\n","record":{"message":"boom","time":{"timestamp":1739847241.0},"process":{"id":7}}}',
            "2025 | boom",
            None,
            "",
        ),
        (
            '{"MESSAGE":"[rank1]: boom","_HOSTNAME":"n1","__REALTIME_TIMESTAMP":"1739847241000000","PRIORITY":"6"}',
            "boom",
            1,
            "n1",
        ),
        ('2025-02-18T02:54:01Z [pod/w-1/main] {"level":"info","msg":"boom"}', "boom", None, "w-1"),
    ],
)
def test_logs_wrapped_in_json(line, text, rank, host):
    (found,) = parse_output(line.encode()).lines
    assert (found.text, found.rank, found.host) == (text, rank, host)
    assert found.time_ns == 1_739_847_241_000_000_000


def test_an_exception_inside_json():
    trace = "\\n".join(TRACE).replace('"', '\\"')
    log = parse_output(f'{{"level":"ERROR","rank":3,"message":"step failed","exc_info":"{trace}"}}'.encode())
    assert [(rank, e.type, e.message) for rank, e in log.errors] == [(3, "ValueError", "bad batch")]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 0.27, 'epoch': 3}",
        '{"loss": 0.27, "epoch": 3}',
        '{"text": "a sample of the data", "label": 1}',
        '{"message": {"message": "inner"}, "timestamp": 3}',
        "{",
        '{"log": 3, "time": 1}',
        "{" * 100_000 + "}",
    ],
)
def test_what_only_looks_like_wrapped_json_stays(line):
    assert texts(line.encode()) == [line[: output_log.MAX_LINE_CHARS]]


def test_tracebacks_of_local_ranks_without_a_global_one_do_not_mix():
    lines = ["  group_world_size=2", *[f"[default{r}]:{line}" for line in TRACE for r in (0, 1)]]
    log = parse_output("\n".join(lines).encode())
    assert [(rank, e.message) for rank, e in log.errors] == [(None, "bad batch")] * 2


def _columns(*orders: str, words: str = "[Mar 04, 22:06:{n}] [{n}] # {what} of {n}0 files") -> list[int | None]:
    lines = [
        words.format(n=n, what=what) for n, order in enumerate(orders) for what in [f"part {'abc'[n]}"] for n in order
    ]
    return [line.rank for line in parse_output("\n".join(lines).encode()).lines]


def test_a_number_that_processes_take_in_turns_is_their_rank() -> None:
    assert _columns("2031", "1320", "0") == [2, 0, 3, 1, 1, 3, 2, 0, 0]


def test_a_list_that_one_process_prints_tells_no_rank() -> None:
    assert set(_columns("0123", "0123")) == {None}
    assert set(_columns("2031")) == {None}, "one wording may be chance"
    assert set(_columns("2035", "5302")) == {None}, "a number is missing"


def test_numbers_of_several_nodes_are_no_ranks() -> None:
    text = "+ torchrun --nnodes 2 train.py\n" + "\n".join(
        f"[{n}] {what}" for what in ("reads", "trains") for n in "2031"
    )
    assert {line.rank for line in parse_output(text.encode()).lines} == {None}
