"""What the caller ignores, as under `nohup` and in a script's background, ends neither us nor the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.slowness import slowness

UNHANG = [sys.executable, "-m", "unhang"]
LATE = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={}, "
    "Timeout(ms)=1800000) ran for 1801750 milliseconds before timing out.\n"
)
JOB = """if 1:
    import os, signal, sys, time
    print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM), flush=True)
    open("up", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    sys.exit(5)
"""


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.02)


@pytest.mark.parametrize("under", [[], [*UNHANG, "run", "--quiet", "--report-dir", "out", "--"]], ids=["alone", "run"])
def test_a_job_under_nohup_outlives_the_hangup_of_its_terminal(under: list[str], tmp_path: Path) -> None:
    command = ["nohup", *under, sys.executable, "-S", "-c", JOB]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as job:
        _wait_for(tmp_path / "up")
        os.killpg(job.pid, signal.SIGHUP)
        os.kill(job.pid, signal.SIGHUP)
        (tmp_path / "go").touch()
        out, _ = job.communicate(timeout=30 * slowness())
    assert (job.returncode, out.decode()) == (5, "1 0\n")
    if under:
        assert "so by us and the job: SIGHUP\n" in (tmp_path / "out" / "bundle" / "agent.log").read_text()


def test_following_a_log_in_the_background_of_a_script_ends_at_sigterm_alone(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(LATE.format(rank, op) for rank, op in enumerate(("REDUCE", "ALLGATHER", "ALLGATHER"))))
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    command = [*ignoring, *UNHANG, "diagnose", "--follow", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith(b"HANG")
        following.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            following.wait(1.5)  # it looks every half second
        following.terminate()
    assert following.returncode == 1
