from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.slowness import slowness
from tests.unit.watch.conftest import until

Jobs = Any
Terminal = Any

NOISY = """if 1:
    import os, signal, sys, time
    file = open(sys.argv[1] if sys.argv[1:] else os.devnull, 'w')
    def seen(number, _):
        os.write(1, b'<%s>' % signal.Signals(number).name.encode())
    for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'):
        signal.signal(getattr(signal, name), seen)
    file.write(str(os.getpid())), file.flush()
    os.write(1, b'ready')
    for _ in range(1200):  # a signal just before a long sleep would be handled after it
        time.sleep(0.05)
"""
SAYS = """
def watch(options, run_dir, root_pid, to_supervisor, from_supervisor):
    for message in {messages!r}:
        os.write(to_supervisor, json.dumps(message).encode() + b"\\n")
    os.read(from_supervisor, 100)
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]


def read_until(process: Any, text: bytes, seen: bytes = b"") -> bytes:
    while text not in seen:
        data = os.read(process.stdout.fileno(), 1000)
        assert data, seen
        seen += data
    return seen


@pytest.mark.parametrize(
    ("code", "expected"),
    [("pass", 0), ("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_jobs_own(jobs: Jobs, code: str, expected: int) -> None:
    done = jobs.run(python(code))
    assert (done.returncode, done.stdout, done.stderr) == (expected, b"", b"")
    assert jobs.job_file()["exit_code"] == expected
    assert jobs.job_file()["ended_by_us"] is False
    assert jobs.job_file()["interrupted_by"] is None


@pytest.mark.parametrize(("code", "is_withdrawn"), [(0, True), (3, False)])
def test_a_good_end_takes_a_suspicion_back(jobs: Jobs, code: int, is_withdrawn: bool) -> None:
    verdict = jobs.run_dir / "verdict.json"
    suspects = (
        f'import sys; open(sys.argv[1], \'w\').write(\'{{"withdrawn": false, "kind": "suspected"}}\'); sys.exit({code})'
    )
    assert jobs.run(python(suspects, verdict)).returncode == code
    assert json.loads(verdict.read_text()) == {"withdrawn": is_withdrawn, "kind": "suspected"}


GOES_ON = """
def watch(options, run_dir, root_pid, to_supervisor, from_supervisor):
    import time
    time.sleep(1)
    os.write(to_supervisor, b'{"event": "goes-on"}\\n')
    time.sleep(0.5)
    os.kill(root_pid, signal.SIGUSR1)
    os.read(from_supervisor, 100)
"""
LAST_WORD = [{"event": "verdict", "kind": "suspected", "end": True}]


def test_a_job_whose_ranks_have_ended_is_not_ended(jobs: Jobs) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (jobs.run_dir / "ranks" / f"r0-{gone.pid}").mkdir(parents=True)
    done = jobs.run(python("import time; time.sleep(1)"), watcher=SAYS.format(messages=LAST_WORD))
    assert (done.returncode, done.stderr) == (0, b"")
    assert jobs.job_file()["ended_by_us"] is False


def test_an_end_that_came_too_late_is_no_hang(jobs: Jobs) -> None:
    """The ranks had ended well a moment before, and the watcher says so; only the launcher was still there."""
    folder = jobs.run_dir / "ranks" / f"r0-{os.getpid()}"
    folder.mkdir(parents=True)
    (folder / "proc.json").write_text(json.dumps({"state": "gone", "died_ns": 1, "exit_code": 0}))
    (jobs.run_dir / "verdict.json").write_text('{"withdrawn": false, "kind": "suspected"}')
    done = jobs.run(["sleep", "60"], watcher=SAYS.format(messages=LAST_WORD))
    assert done.returncode == 0
    assert jobs.job_file()["ended_by_us"] is False
    assert json.loads((jobs.run_dir / "verdict.json").read_text())["withdrawn"] is True


@pytest.mark.parametrize(
    ("will_end", "code", "expected"), [(True, 3, 124), (True, 0, 0), (False, 3, 3)], ids=["ended", "well", "by itself"]
)
def test_what_other_nodes_end_has_hung_though_it_failed_before_we_read_of_it(
    jobs: Jobs, will_end: bool, code: int, expected: int
) -> None:
    joint = {"event": "joint", "kind": "proven", "line": "rank 0 is late", "will_end": will_end, "ns": 5}
    done = jobs.run(python(f"import sys; sys.exit({code})"), watcher=SAYS.format(messages=[joint]))
    assert done.returncode == expected
    assert jobs.job_file()["ended_by_us"] is (expected == 124)
    assert jobs.job_file().get("aborted_ns") == (5 if expected == 124 else None)


def test_a_signal_that_the_job_took_did_not_end_it(jobs: Jobs) -> None:
    process = jobs.start(python(NOISY, jobs.file("pid")), GOES_ON)
    read_until(process, b"ready")
    process.terminate()
    read_until(process, b"<SIGTERM>")
    read_until(process, b"<SIGUSR1>")
    os.kill(jobs.pid_in("pid"), signal.SIGKILL)
    assert process.wait(20) == 137
    assert jobs.job_file()["interrupted_by"] is None


@pytest.mark.parametrize(("command", "expected"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_started(jobs: Jobs, command: str, expected: int) -> None:
    done = jobs.run([command])
    assert done.returncode == expected
    assert done.stderr.startswith(b"unhang: " + command.encode())
    assert done.stderr.count(b"\n") == 1


def test_the_job_gets_its_environment_and_an_unblocked_mask(jobs: Jobs) -> None:
    inherited = set(os.environ)  # torch may have added to it, if a test before this one has imported it
    code = f"""if 1:
        import os, signal
        print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), signal.getsignal(signal.SIGINT).__name__)
        names = sorted(k for k in os.environ if k.startswith(('UNHANG', 'TORCH')) and k not in {inherited!r})
        print(names, os.getpgrp() == os.getpgid(os.getppid()))
        print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"""
    done = jobs.run(python(code))
    ours = ["UNHANG_ADDED", "UNHANG_RUN_DIR", "UNHANG_TRACER_PID"]
    names = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", *ours]
    assert done.stdout.decode() == f"[] default_int_handler\n{names} True\n[0, 1, 2]\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_sent_to_us_reaches_the_job(jobs: Jobs, name: str) -> None:
    process = jobs.start(python(NOISY, jobs.file("pid")))
    read_until(process, b"ready")
    jobs.agent_pid()
    process.send_signal(getattr(signal, name))
    read_until(process, b"<%s>" % name.encode())
    os.kill(jobs.pid_in("pid"), signal.SIGKILL)
    assert process.wait(20) == 137
    assert jobs.job_file()["interrupted_by"] == (None if "USR" in name else name)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_sent_to_the_group_reaches_the_job_once(jobs: Jobs, name: str) -> None:
    # Were it passed on, it would come so late that the two are not taken for one.
    patch = """if 1:
        signal_job = supervise.Supervisor.signal_job
        supervise.Supervisor.signal_job = lambda *a: (time.sleep(0.1), signal_job(*a))"""
    process = jobs.start(python(NOISY, jobs.file("pid")), patch=patch, start_new_session=True)
    seen = read_until(process, b"ready")
    jobs.agent_pid()
    os.killpg(process.pid, getattr(signal, name))
    seen = read_until(process, b">", seen)
    os.kill(process.pid, signal.SIGUSR1)
    seen = read_until(process, b"<SIGUSR1>", seen)
    assert seen == b"ready<%s><SIGUSR1>" % name.encode()
    os.kill(jobs.pid_in("pid"), signal.SIGKILL)
    assert process.wait(20) == 137


def test_the_watcher_bears_the_command_of_the_job(jobs: Jobs) -> None:
    """So `pkill -f "unhang run"` does not find it, and `pkill -f train.py` finds it beside the job: the one is passed on, the other not."""
    job, elsewhere = jobs.start(["sleep", "61.75"]), b"sleep\0" + b"61.75"
    command = Path(f"/proc/{jobs.agent_pid()}/cmdline").read_bytes()
    assert command.rstrip(b"\0") == elsewhere
    assert elsewhere not in Path(f"/proc/{os.getpid()}/cmdline").read_bytes(), "it is of this process alone"
    job.terminate()
    assert job.wait(20) == 143


def test_a_signal_sent_by_name_reaches_the_job_when_it_is_sent_again(jobs: Jobs) -> None:
    """`pkill unhang` finds us and the watcher, but not the job, and looks like a signal to the group."""
    process = jobs.start(python(NOISY, jobs.file("pid")))
    seen = read_until(process, b"ready")
    watcher = jobs.agent_pid()
    for _ in range(2):
        for pid in (watcher, process.pid):
            os.kill(pid, signal.SIGTERM)
        time.sleep(1.5)
    seen = read_until(process, b">", seen)
    os.kill(process.pid, signal.SIGUSR1)
    assert read_until(process, b"<SIGUSR1>", seen) == b"ready<SIGTERM><SIGUSR1>"
    os.kill(jobs.pid_in("pid"), signal.SIGKILL)
    assert process.wait(20) == 137


def test_a_job_that_ends_at_sigterm_ends_us(jobs: Jobs) -> None:
    process = jobs.start(["sleep", "60"])
    jobs.agent_pid()
    process.terminate()
    assert process.wait(20) == 143
    assert process.stderr.read() == b""


def test_ignored_signals_stay_ignored(jobs: Jobs) -> None:
    line = jobs.line(python("import signal; print(signal.getsignal(1), signal.getsignal(2))"))
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *line], capture_output=True, timeout=20 * slowness()
    )
    assert done.stdout == b"1 1\n"


@pytest.mark.parametrize("is_watched", [True, False])
def test_ctrl_c_reaches_the_job_exactly_once(jobs: Jobs, terminal: Terminal, is_watched: bool) -> None:
    patch = """if 1:
        signal_job = supervise.Supervisor.signal_job
        supervise.Supervisor.signal_job = lambda *a: (time.sleep(0.1), signal_job(*a))
        def none(*_): raise BlockingIOError(11, "Resource temporarily unavailable")"""
    patch += "" if is_watched else "\n        supervise.Agent = none"
    process = jobs.start(python(NOISY, jobs.file("pid")), patch=patch, **terminal.how())
    terminal.expect(b"ready")
    if is_watched:
        jobs.agent_pid()
    terminal.type(b"\x03")
    terminal.expect(b"<SIGINT>")
    process.send_signal(signal.SIGUSR1)
    terminal.expect(b"<SIGUSR1>")
    assert terminal.read().replace(b"^C", b"").endswith(b"ready<SIGINT><SIGUSR1>")
    os.kill(jobs.pid_in("pid"), signal.SIGKILL)
    assert process.wait(20) == 137


def test_ctrl_c_ends_a_job_that_lets_it(jobs: Jobs, terminal: Terminal) -> None:
    code = "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(60)"
    process = jobs.start(python(code), **terminal.how())
    terminal.expect(b"ready")
    jobs.agent_pid()
    terminal.type(b"\x03")
    assert process.wait(20) == 130
    end = json.loads((jobs.run_dir / "end.json").read_text())
    assert end == {
        "exit_code": 130,
        "ended_by_us": False,
        "interrupted_by": "SIGINT",
        "died_of_interrupt": True,
        "joint_line": "",
    }


def test_ctrl_c_twice_ends_a_deaf_job(jobs: Jobs, terminal: Terminal) -> None:
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    process = jobs.start(python(code), patch="supervise.SECOND_INTERRUPT_S = (0.0, 10)", **terminal.how())
    terminal.expect(b"ready")
    jobs.agent_pid()
    terminal.type(b"\x03")
    terminal.expect(b"^C")
    time.sleep(0.1)  # else the two are one pending signal
    assert process.poll() is None
    terminal.type(b"\x03")
    assert process.wait(20) == 130
    assert b"unhang: interrupted twice" in terminal.read()


def test_a_hung_job_is_ended_with_all_it_started(jobs: Jobs) -> None:
    code = f"""if 1:
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(jobs.file("daemon"))!r}, 'w').write(str(os.getpid()))
                time.sleep(60)
            os._exit(0)
        open({str(jobs.file("root"))!r}, 'w').write(str(os.getpid()))
        time.sleep(60)"""
    watcher = f"""
def watch(options, run_dir, root_pid, to_supervisor, from_supervisor):
    while not (os.path.exists({str(jobs.file("daemon"))!r}) and os.path.exists({str(jobs.file("root"))!r})):
        time.sleep(0.01)
    os.write(to_supervisor, b'not json\\n[1]\\n{{"event": "verdict", "kind": "pro')
    os.write(to_supervisor, b'ven", "end": true}}\\n')
    os.read(from_supervisor, 100)
"""
    patch = "supervise.end.__defaults__ = (supervise.end.__defaults__[0], 0.3, 5.0)"
    done = jobs.run(python(code), watcher=watcher, patch=patch)
    assert done.returncode == 124
    assert done.stderr == b"unhang: the job hangs (proven); ending it\n"
    assert jobs.job_file()["ended_by_us"] is True
    assert jobs.job_file()["started_ns"] < jobs.job_file()["aborted_ns"] < jobs.job_file()["ended_ns"]
    assert not any(Path(f"/proc/{jobs.pid_in(name)}").exists() for name in ("root", "daemon"))


@pytest.mark.parametrize("on_hang", ["abort", "report"])
def test_a_verdict_that_does_not_end_the_job(jobs: Jobs, on_hang: str) -> None:
    verdict = {"event": "verdict", "kind": "suspected", "end": on_hang == "report"}
    absent = {"event": "absent", "what": "stacks", "reason": "ptrace is forbidden"}
    messages = [verdict, {"event": "note", "text": "look\nhere"}, {"event": "show", "text": "HANG\n  why"}, absent]
    process = jobs.start(
        python("import sys; sys.stdin.read()"),
        watcher=SAYS.format(messages=messages),
        options={"on_hang": on_hang},
        stdin=subprocess.PIPE,
    )
    assert process.stderr.readline() == b"unhang: look here\n"
    process.stdin.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b"\nHANG\n  why\n"
    assert jobs.job_file()["absent"] == [{"what": "stacks", "reason": "ptrace is forbidden"}]


def test_the_watcher_is_told_the_end_and_the_first_pid(jobs: Jobs) -> None:
    code = "import os, sys; print(os.getpid()); sys.stdout.flush(); sys.stdin.read()"
    process = jobs.start(python(code), stdin=subprocess.PIPE)
    pid = int(process.stdout.readline())
    jobs.agent_pid()
    process.stdin.close()
    assert process.wait(20) == 0
    assert (jobs.run_dir / "agent.pid").read_text().split()[1] == str(pid)
    assert (jobs.run_dir / "told-to-end").exists()


def test_a_killed_watcher_is_one_line_and_another_one_goes_on(jobs: Jobs) -> None:
    process = jobs.start(python("import sys; sys.stdin.read(); sys.exit(5)"), stdin=subprocess.PIPE)
    os.kill(first := jobs.agent_pid(), signal.SIGKILL)
    expected = b"unhang: the watcher ended unexpectedly (signal 9); another one goes on\n"
    assert process.stderr.readline() == expected
    until(lambda: jobs.agent_pid() != first)
    process.stdin.close()
    assert process.wait(20) == 5
    assert process.stderr.read() == b""
    assert (jobs.run_dir / "told-to-end").exists()
    assert jobs.job_file()["absent"][0]["what"] == "watcher"


def test_a_failing_watcher_leaves_its_traceback(jobs: Jobs) -> None:
    process = jobs.start(
        python("import sys; sys.stdin.read()"), watcher="def watch(*_): raise KeyError('why')", stdin=subprocess.PIPE
    )
    assert b"(exit code 1)" in process.stderr.readline()
    process.stdin.close()
    assert process.wait(20) == 0
    assert "KeyError: 'why'" in (jobs.run_dir / "agent.log").read_text()


def test_a_watcher_that_does_not_finish_is_ended(jobs: Jobs) -> None:
    watcher = """
def watch(options, run_dir, *_):
    (run_dir / "agent.pid").write_text(str(os.getpid()))
    time.sleep(60)
"""
    process = jobs.start(
        python("import sys; sys.stdin.read()"),
        watcher=watcher,
        patch="supervise.AGENT_WAIT_S = 0.1",
        stdin=subprocess.PIPE,
    )
    pid = jobs.agent_pid()
    process.stdin.close()
    assert process.wait(20) == 0
    assert not Path(f"/proc/{pid}").exists()
    assert jobs.job_file()["absent"] == [{"what": "watcher", "reason": "it did not finish within 0.1 s"}]


def test_the_job_outlives_a_killed_supervisor(jobs: Jobs) -> None:
    code = """if 1:
        import os, sys, time
        go = sys.argv[1]
        os.write(1, b'first')
        open(go + '.pid', 'w').write(str(os.getpid()))
        while not os.path.exists(go): time.sleep(0.01)
        os.write(1, b'second')
        open(go + '.done', 'w').close()"""
    go = jobs.file("go")
    process = jobs.start(python(code, go))
    jobs.pid_in("go.pid")
    jobs.agent_pid()
    process.kill()
    process.wait(20)
    go.touch()
    assert process.stdout.read() == b"firstsecond"
    assert jobs.file("go.done").exists()
    assert (jobs.run_dir / "output.log").read_bytes() == b"firstsecond"


def test_orphaned_ranks_are_ended_and_other_daemons_left_alone(jobs: Jobs) -> None:
    code = f"""if 1:
        import os, time
        def stay(name):
            os.setsid()
            for n in (0, 1, 2): os.close(n)
            open({str(jobs.folder)!r} + '/' + name, 'w').write(str(os.getpid()))
            if name == 'rank': os.makedirs({str(jobs.run_dir)!r} + '/ranks/r0-%d' % os.getpid())
            open({str(jobs.folder)!r} + '/' + name + '.ready', 'w').close()
            time.sleep(60)
        for name in ('rank', 'daemon'):
            if os.fork() == 0: stay(name)
            while not os.path.exists({str(jobs.folder)!r} + '/' + name + '.ready'): time.sleep(0.01)"""
    done = jobs.run(python(code))
    assert done.returncode == 0
    assert done.stderr == b"unhang: 1 training process outlived the launcher: ended\n"
    assert not Path(f"/proc/{jobs.pid_in('rank')}").exists()
    assert Path(f"/proc/{jobs.pid_in('daemon')}").exists()


def test_without_a_relay_or_watcher_the_job_runs(jobs: Jobs) -> None:
    patch = """if 1:
        def none(*_): raise BlockingIOError(11, "Resource temporarily unavailable")
        supervise.start_relay = supervise.Agent = none"""
    done = jobs.run(python("import os; os.write(1, b'out')"), patch=patch)
    assert (done.returncode, done.stdout) == (0, b"out")
    assert done.stderr.count(b"\n") == 2
    assert [a["what"] for a in jobs.job_file()["absent"]] == ["output.log", "watcher"]


def test_a_run_dir_that_is_gone_does_not_harm_the_job(jobs: Jobs) -> None:
    line = jobs.line(python("import os; os.write(1, b'out')"))
    line[2] = line[2].replace(str(jobs.run_dir), "/proc/nowhere").replace("(run_dir / ", "0 and (run_dir / ")
    done = subprocess.run(line, capture_output=True, timeout=20 * slowness())
    assert (done.returncode, done.stdout) == (0, b"out")
