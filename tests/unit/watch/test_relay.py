from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.slowness import slowness

from unhang.watch import relay
from unhang.watch.relay import GAP, Channel, Fold, OutputLog, pump

Jobs = Any
Terminal = Any
BYTES_OUT = "import os, sys; w = lambda n, b: os.write(n, b); "


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def small_log(folder: Path) -> OutputLog:
    return OutputLog(folder / "log", head=10, tail=20, slack=5)


def test_the_log_keeps_everything_that_fits(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    for piece in (b"0123456789", b"abc", b"\xff\x00\n"):
        log.write(piece)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"0123456789abc\xff\x00\n"


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000])
def test_the_log_keeps_its_head_and_its_tail(tmp_path: Path, piece_bytes: int) -> None:
    data = bytes(i % 251 for i in range(1000))
    log = small_log(tmp_path)
    for start in range(0, len(data), piece_bytes):
        log.write(data[start : start + piece_bytes])
        assert (tmp_path / "log").stat().st_size <= 10 + len(GAP) + 20 + 5
    log.close()
    assert (tmp_path / "log").read_bytes() == data[:10] + GAP + data[-20:]


def test_the_log_is_not_cut_again_at_its_end(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    log.write(b"x" * 100)
    once = (tmp_path / "log").read_bytes()
    log.close()
    log.write(b"too late")
    assert (tmp_path / "log").read_bytes() == once


def test_a_log_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = OutputLog(tmp_path / "missing" / "log")
    nowhere.write(b"data")
    nowhere.close()
    assert nowhere.failed
    log = small_log(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(relay.os, "pwrite", full)
    log.write(b"data")
    log.write(b"more")
    assert log.failed
    assert log.failed.errno == errno.ENOSPC


def test_a_full_sink_costs_the_bytes_and_not_the_job(tmp_path: Path) -> None:
    source, job_end = os.pipe()
    sink = os.open("/dev/full", os.O_WRONLY)
    log = small_log(tmp_path)
    os.write(job_end, b"data")
    os.close(job_end)
    pump(Channel(sink, source, -1, is_terminal=False), log)
    os.close(sink)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"data"


def test_bytes_pass_unchanged(jobs: Jobs) -> None:
    code = (
        "import os, sys; b = bytes(range(256)) * 300; os.write(1, b); os.write(2, b[::-1]); os.write(1, b'no newline')"
    )
    done = jobs.run(python(code))
    junk = bytes(range(256)) * 300
    assert done.stdout == junk + b"no newline"
    assert done.stderr == junk[::-1]
    assert sorted((jobs.run_dir / "output.log").read_bytes()) == sorted(junk * 2 + b"no newline")


def test_much_output_passes_and_the_log_stays_small(jobs: Jobs) -> None:
    code = "import sys\nfor i in range(100_000): sys.stdout.write(f'{i:099d}\\n')"
    done = jobs.run(python(code))
    assert done.stdout == b"".join(b"%099d\n" % i for i in range(100_000))
    log = (jobs.run_dir / "output.log").read_bytes()
    assert len(log) == relay.HEAD_BYTES + len(GAP) + relay.TAIL_BYTES
    assert log.startswith(done.stdout[: relay.HEAD_BYTES])
    assert log.endswith(done.stdout[-relay.TAIL_BYTES :])


def test_partial_lines_pass_at_once(jobs: Jobs) -> None:
    process = jobs.start(python("import os, sys; os.write(1, b'half'); sys.stdin.read()"), stdin=subprocess.PIPE)
    assert os.read(process.stdout.fileno(), 100) == b"half"
    process.stdin.close()
    assert process.wait(20) == 0


def test_stdout_and_stderr_into_one_pipe_keep_their_order(jobs: Jobs) -> None:
    code = "import os\nfor i in range(500): os.write(1 + i % 2, b'%d ' % i)"
    done = jobs.run(python(code), stderr=subprocess.STDOUT)
    assert done.stdout.split() == [b"%d" % i for i in range(500)]


def test_the_job_sees_the_end_of_its_reader(jobs: Jobs) -> None:
    code = "import os, signal\nsignal.signal(13, signal.SIG_DFL)\nwhile 1: os.write(1, b'line\\n' * 10)"
    process = jobs.start(python(code))
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.wait(20) == 128 + 13


def test_closed_stdout_is_survived(jobs: Jobs) -> None:
    line = jobs.line(python("import os; os.write(2, b'still here')"))
    done = subprocess.run(["sh", "-c", '"$@" >&- <&-', "sh", *line], capture_output=True, timeout=20 * slowness())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"still here")


def test_a_terminal_stays_a_terminal(jobs: Jobs, terminal: Terminal) -> None:
    code = "import os; print([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(1)); os.write(2, b'a\\nb\\r\\tc')"
    process = jobs.start(python(code), **terminal.how())
    assert process.wait(20) == 0
    size = b"os.terminal_size(columns=77, lines=33)"
    assert terminal.read() == b"[True, True, True] " + size + b"\r\na\r\nb\r\tc"
    assert (jobs.run_dir / "output.log").read_bytes() == b"[True, True, True] " + size + b"\na\nb\r\tc"


def test_a_new_window_size_reaches_the_job(jobs: Jobs, terminal: Terminal) -> None:
    code = """if 1:
        import os, signal, time
        signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'%d x %d\\n' % os.get_terminal_size(1)))
        os.write(1, b'ready\\n')
        for _ in range(1200):  # a signal just before a long sleep would be handled after it
            time.sleep(0.05)"""
    process = jobs.start(python(code), **terminal.how())
    terminal.expect(b"ready")
    terminal.resize(40, 120)
    terminal.expect(b"120 x 40")
    process.terminate()
    assert process.wait(20) == 128 + 15


def test_a_daemon_that_holds_the_pipe_does_not_hold_us(jobs: Jobs) -> None:
    code = f"""if 1:
        import os, time
        if os.fork() == 0:
            os.setsid()
            open({str(jobs.file("pid"))!r}, 'w').write(str(os.getpid()))
            time.sleep(60)
        os.write(1, b'done')"""
    process = jobs.start(python(code))
    assert process.wait(20) == 0
    assert os.read(process.stdout.fileno(), 100) == b"done"
    assert Path(f"/proc/{jobs.pid_in('pid')}").exists()


OWN_END = (
    b'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n             ^^^^^^\n'
    b"torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15\n"
)
FOLDED = b"[the launcher was ended by SIGTERM; its traceback of 5 lines is in output.log]\n"
OTHER = b'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\nValueError: bad\n'


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\n" + OWN_END + b"b\n", b"a\n" + FOLDED + b"b\n"),
        (OTHER + OWN_END + OTHER, OTHER + FOLDED + OTHER),
        (OTHER, OTHER),
        (OWN_END.replace(b"signal: 15", b"signal: 2"), OWN_END.replace(b"signal: 15", b"signal: 2")),
        (OWN_END[:-30], OWN_END[:-30]),
        (OTHER[:50], OTHER[:50]),
        (b"no end of line", b"no end of line"),
    ],
)
def test_the_launchers_own_end_is_one_line_once_the_job_is_ended(data: bytes, shown: bytes, size: int) -> None:
    is_ending = threading.Event()
    fold = Fold(is_ending)
    assert fold.shown(data) == data
    is_ending.set()
    parts = [fold.shown(data[i : i + size]) for i in range(0, len(data), size)]
    assert b"".join(parts) + fold.rest() == shown
