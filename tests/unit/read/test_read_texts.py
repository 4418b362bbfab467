"""py-spy, faulthandler, torchelastic error files and the recorder's page."""

from __future__ import annotations

import json

import pytest

from unhang.errors import UnreadableInput
from unhang.model import Frame
from unhang.read import page as page_module
from unhang.read.launchers import read_elastic_error
from unhang.read.page import parse_page
from unhang.read.stack_texts import parse_faulthandler, read_pyspy


def test_pyspy(tmp_path):
    frame = {"name": "Thread.run", "filename": "/usr/lib/python3.11/threading.py", "module": None, "line": 982}
    path = tmp_path / "pyspy.json"
    threads = [
        {"pid": 7, "thread_name": "w", "os_thread_id": 9, "active": False, "owns_gil": True, "frames": [frame]},
        {"pid": 7, "thread_name": "renamed", "os_thread_id": 7, "active": True, "frames": [{"name": "f"}]},
        {"thread_name": None, "frames": None},
    ]
    path.write_text(json.dumps(threads))
    worker, main, bare = read_pyspy(path)
    assert worker.frames == (Frame("/usr/lib/python3.11/threading.py", 982, "run"),)
    assert (worker.is_main, worker.is_active, worker.owns_gil, worker.name) == (False, False, True, "w")
    assert (main.is_main, main.owns_gil, main.process_id) == (True, None, 7)
    assert (bare.name, bare.frames, bare.is_main) == ("thread", (), False)
    assert worker.source.reader == "py-spy"
    path.write_text("{}")
    with pytest.raises(UnreadableInput, match="py-spy"):
        read_pyspy(path)


ASKED = """Thread 0x00007f76341dc6c0 (most recent call first):
  File "/home/me/a b.py", line 3 in wait for it
  File "<frozen runpy>", line ??? in _run

Current thread 0x00007f7634c45b80 (most recent call first):
  File "/home/me/train.py", line 5 in <module>
"""
FATAL = (
    """Fatal Python error: Aborted

"""
    + ASKED
    + """
Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""
)


def test_faulthandler_tells_dumps_apart():
    first, second, fatal = parse_faulthandler(ASKED + ASKED + FATAL, 0x7F7634C45B80)
    assert [d.reason for d in (first, second, fatal)] == [None, None, "Aborted"]
    assert [len(d.threads) for d in (first, second, fatal)] == [2, 2, 2]
    assert fatal.signal_number == 6
    worker, main = fatal.threads
    assert worker.frames == (Frame("/home/me/a b.py", 3, "wait for it"), Frame("<frozen runpy>", 0, "_run"))
    assert (main.is_main, main.name, worker.is_main) == (True, "MainThread", False)
    assert fatal.current == main


def test_faulthandler_of_newer_pythons():
    (dump,) = parse_faulthandler(
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00000001 [loader 1] (most recent call first):\n  <no Python frame>\n\n"
        'Thread 0x00000002 [train] (most recent call first):\n  File "t.py", line 1 in f\n  ...\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at +0x3 [0x7f]\n'
    )
    assert [(t.name, len(t.frames), t.is_main) for t in dump.threads] == [("loader 1", 0, False), ("train", 1, True)]
    assert dump.signal_number == 11


def test_faulthandler_cut_anywhere_gives_what_is_there():
    for end in range(len(FATAL)):
        for dump in parse_faulthandler(FATAL[:end]):
            assert len(dump.threads) <= 2
    assert parse_faulthandler("") == ()


CALLSTACK = """Traceback (most recent call last):
  File "/home/me/t.py", line 8, in main
    int('x')
    ^^^^^^^^
ValueError: invalid literal

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/t.py", line 12, in <module>
    main()
  File "/home/me/t.py", line 9, in main
    raise MyError('bad batch') from e
pkg.MyError: bad batch
with a second line
"""


def test_elastic_error(tmp_path):
    path = tmp_path / "error.json"
    extra = {"py_callstack": CALLSTACK, "timestamp": "1795253720"}
    path.write_text(json.dumps({"message": {"message": "MyError: bad batch", "extraInfo": extra}}))
    error = read_elastic_error(path)
    assert (error.type, error.message) == ("pkg.MyError", "bad batch\nwith a second line")
    assert error.frames == (Frame("/home/me/t.py", 9, "main"), Frame("/home/me/t.py", 12, "<module>"))
    assert error.time_ns == 1795253720 * 10**9
    path.write_text('{"message": "RuntimeError: gone"}')
    assert (read_elastic_error(path).type, read_elastic_error(path).message) == ("RuntimeError", "gone")
    path.write_text('{"message": "it is: gone"}')
    assert (read_elastic_error(path).type, read_elastic_error(path).message) == ("Error", "it is: gone")
    path.write_text('{"message": 3}')
    with pytest.raises(UnreadableInput):
        read_elastic_error(path)


def made_page(header=(), records=(), groups=()):
    data = bytearray(73728)
    page_module.HEADER.pack_into(data, 0, *((page_module.MAGIC, 1, *header) + (0,) * 12)[:12])
    for slot, group in enumerate(groups):
        page_module.STATUS.pack_into(data, 4096 + 32 * slot, *group, 0)
    for number, *fields, content in records:
        page_module.RECORD.pack_into(data, 8192 + 256 * (number % 256), number + 1, *fields, content)
    return bytes(data)


RECORDS = [
    (256, 4, 1, 3, 100, 0, 7, 0, b"0\x1f\x1f/home/me/train.py:12:step|/home/me/train.py:40:<module>"),
    (255, 6, -1, 9, 90, 95, 0, 0, b"\x1fdefault_pg/0\x1f"),
    (300, 3, 0, 4, 80, 0, 0, 0, b"1\x1fdetail\x1f" + b"/x/" + b"y" * 160 + b":123:f|/x/z.py:1"),
    (301, 99, 0, 4, 80, 0, 0, 0, b""),
]


def test_page():
    page = parse_page(made_page((77, 5, 12, 6, 3, 7, 302, 2, 1, 4), RECORDS, [(1, 40, 39), (4, 2, -1)]))
    assert (page.pid, page.heartbeat_ns, page.steps, page.last_step_ns) == (77, 5, 12, 6)
    assert (page.phase, page.phase_since_ns) == ("backward", 7)
    assert (page.initialized, page.ended) == (True, True)
    assert page.groups == {0: (40, 39), 3: (2, -1)}
    wait, irecv, cut = page.pending
    assert (wait.kind, wait.detail, wait.peer, wait.ended_ns, wait.group) == (
        "store_wait",
        "default_pg/0",
        None,
        95,
        "",
    )
    assert (irecv.kind, irecv.peer, irecv.index, irecv.tag, irecv.ended_ns) == ("irecv", 1, 3, 7, None)
    assert irecv.frames == (Frame("/home/me/train.py", 12, "step"), Frame("/home/me/train.py", 40, "<module>"))
    assert [f.line for f in cut.frames] == [123], "a frame that was cut is left out"


def test_since_when_a_posted_call_is_awaited():
    """In microseconds after its start, above the kind; other bits of that word make no other kind."""
    posted = (256, 4 | 2500 << 8, 1, 3, 100, 0, 7, 0, b"0\x1f\x1f")
    never, waits = (257, 3, 1, 4, 100, 0, 7, 0, b"0\x1f\x1f"), (258, 12, -1, 1, 90, 0, 0, 0, b"\x1f\x1f")
    calls = parse_page(made_page((77,), [posted, never, waits])).pending
    assert [(c.kind, c.awaited_ns) for c in calls] == [("irecv", 2_500_100), ("isend", None), ("work_wait", None)]


def test_short_page_reads_as_never_written():
    whole = made_page((77, 5, 12), RECORDS, [(1, 40, 39)])
    for size in (96, 4096, 4100, 8192, 8200):
        page = parse_page(whole[:size])
        assert (page.pid, page.steps, page.pending) == (77, 12, ())
    for bad in (whole[:95], b"\0" * 73728, whole[:8] + b"\x02" + whole[9:]):
        with pytest.raises(UnreadableInput, match="page"):
            parse_page(bad)
