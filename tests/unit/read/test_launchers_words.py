"""How launchers say that ranks ended, and tracebacks of odd shapes."""

from __future__ import annotations

import pytest

from unhang.read.output_log import parse_output
from unhang.read.stack_texts import TracebackReader


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("failed (exitcode: -9) local_rank: 2 (pid: 7035) of binary: /usr/bin/python", {2: -9}),
        ("ProcessExitedException: process 0 terminated with signal SIGSEGV", {0: -11}),
        ("Process 2 terminated with exit code 10, terminating remaining processes.", {2: 10}),
        ("mpirun noticed that process rank 3 with PID 1 on node a exited on signal 9 (Killed).", {3: -9}),
        ("srun: error: node-a: tasks 1-2,5: Out Of Memory", {1: -9, 2: -9, 5: -9}),
        ("srun: error: node-a: task 3: Exited with exit code 1", {3: 1}),
        ("srun: error: node-a: task 3: Segmentation fault (core dumped)", {3: -11}),
        ("srun: error: node-a: tasks 9999999999-2: Killed", {}),
    ],
)
def test_ends_of_ranks(line, expected):
    assert {rank: end.code for rank, end in parse_output(line.encode()).exits.items()} == expected


def test_a_task_that_starts_a_launcher_is_no_rank():
    text = "failed (exitcode: 1) local_rank: 2 (pid: 7035) of binary: python\nsrun: error: node-a: task 0: Exited with exit code 1\n"
    assert sorted(parse_output(text.encode()).exits) == [2]


def test_deepspeed_names_the_process_that_it_started_last_whichever_failed():
    text = (
        "[ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 't.py', '--local_rank=3'] exits with return code = -7"
    )
    assert parse_output(text.encode()).exits == {}


def found(text: str) -> list[tuple[str, str, int]]:
    reader = TracebackReader(many_lines=False)
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(line, number)
    return [(t.type, t.text, len(t.frames)) for t in reader.found]


def test_a_traceback_whose_head_was_cut_off():
    text = (
        '  File "/app/t.py", line 3, in f\n    g()\n  File "/app/t.py", line 9, in g\n    raise E\nmod.MyError: bad\n'
    )
    assert found(text) == [("mod.MyError", "bad", 2)]


def test_without_a_head_only_a_certain_exception_ends_it():
    assert found('  File "/app/t.py", line 3, in f\n    g()\nEpoch: 3\n') == []


def test_a_line_of_a_logger_is_no_exception():
    assert found('Traceback (most recent call last):\n  File "/app/t.py", line 3, in f\nWARNING: other rank\n') == []


def test_a_traceback_in_a_box():
    text = (
        "╭───── Traceback (most recent call last) ──────╮\n│ /app/train.py:120 in <module>                │\n│   117 if x:   │\n"
        "│ /app/model.py:55 in forward                  │\n╰──────────────────────────────────────────────╯\nValueError: bad\n"
    )
    assert found(text) == [("ValueError", "bad", 2)]


def test_what_python_could_not_raise_is_none():
    text = (
        "Exception ignored in: <finalize object; dead>\nTraceback (most recent call last):\n"
        '  File "/app/t.py", line 3, in f\n\n  File "/app/v.py", line 43, in handler\nTimeoutError: over\n'
    )
    assert found(text) == []
