from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from pathlib import Path

import pytest
from jobs import ask_server, environment, header, rank_folder, read_lines, started, wait_for, write
from tests.slowness import slowness

from unhang.inside.recorder import recording
from unhang.inside.recorder.exits import stacks_signal

ALONE = """
import ctypes, os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(2))
print("ready", flush=True)
"""


def _folder(run_dir: Path) -> Path:
    wait_for(lambda: header(rank_folder(run_dir, 0))[recording.INITIALIZED] == 1)
    return rank_folder(run_dir, 0)


def test_aborted_process_still_answers_and_dies_when_woken(tmp_path: Path, run_dir: Path) -> None:
    script = write(tmp_path, "t.py", ALONE + "ctypes.CDLL(None).abort()\n")
    with started(script, env=environment(run_dir)) as process:
        folder = _folder(run_dir)
        stacks = wait_for(lambda: (folder / "faulthandler.txt").read_text())
        assert "Fatal Python error: Aborted" in stacks
        assert b'"pg_status"' in ask_server(folder)
        assert process.poll() is None
        os.kill(process.pid, stacks_signal())
        assert process.wait(2) == -signal.SIGABRT
    assert f'File "{script}", line 7 in <module>' in (folder / "faulthandler.txt").read_text()


_STEPS = "for _ in range(1500):\n    print(time.time(), flush=True)\n    time.sleep(0.01)\n"


def test_aborted_process_dies_by_itself(tmp_path: Path, run_dir: Path) -> None:
    """From inside, from outside, where the handler's return would let it live, and by a signal to itself under the GIL."""
    inside = write(tmp_path, "inside.py", ALONE + "os.abort()\n")
    outside = write(tmp_path, "outside.py", ALONE + _STEPS)
    itself = write(
        tmp_path, "itself.py", f"{ALONE}print(time.time(), flush=True)\nos.kill(os.getpid(), signal.SIGABRT)\n{_STEPS}"
    )
    own = run_dir / "outside"
    with (
        started(inside, env=environment(run_dir)) as first,
        started(outside, env=environment(own)) as second,
        started(itself, env=environment(run_dir / "itself")) as third,
    ):
        folder = _folder(own)
        assert second.stdout is not None
        begun = [second.stdout.readline(), second.stdout.readline()]  # "ready", and its first step
        os.kill(second.pid, signal.SIGABRT)
        wait_for(lambda: (folder / "faulthandler.txt").read_text())
        aborted_s = (folder / "faulthandler.txt").stat().st_mtime
        steps, _ = second.communicate(timeout=20 * slowness())
        own_steps, _ = third.communicate(timeout=20 * slowness())
        assert first.wait(20) == second.returncode == third.returncode == -signal.SIGABRT
    last_step = "".join([*begun, steps]).split()[-1]
    assert float(last_step) <= aborted_s + 0.5, "the program went on after its death"
    assert len(own_steps.split()) < 100, "a second of steps after its death"


def test_rank_that_holds_the_gil(tmp_path: Path, run_dir: Path) -> None:
    script = write(tmp_path, "t.py", ALONE + "def stuck():\n    ctypes.PyDLL(None).sleep(60)\nstuck()\n")
    with started(script, env=environment(run_dir)) as process:
        folder = _folder(run_dir)
        wait_for(lambda: _is_stuck(folder))
        assert b'"pg_status"' in ask_server(folder)
        os.kill(process.pid, stacks_signal())
        wait_for(lambda: "in stuck" in (folder / "faulthandler.txt").read_text())


def _is_stuck(folder: Path) -> bool:
    before = header(folder)[recording.HEARTBEAT]
    time.sleep(0.4)
    return header(folder)[recording.HEARTBEAT] == before


def test_flight_record_on_request(tmp_path: Path, run_dir: Path) -> None:
    with started(write(tmp_path, "t.py", ALONE + "time.sleep(60)\n"), env=environment(run_dir)):
        folder = _folder(run_dir)
        wait_for(lambda: (folder / "page.bin").read_bytes()[4096])
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.sendto(b"dump", str(folder / "ctl.sock"))
        dump = pickle.loads(wait_for(lambda: (folder / "flight.pickle").read_bytes()))
        assert [e["profiling_name"] for e in dump["entries"]] == ["gloo:all_reduce"]
        assert [f["filename"] for f in dump["entries"][0]["frames"]][-1] == str(tmp_path / "t.py")
        before = header(folder)[recording.HEARTBEAT]
        assert wait_for(lambda: header(folder)[recording.HEARTBEAT] > before)


@pytest.mark.parametrize("own", ["faulthandler.enable()", "signal.signal(signal.SIGABRT, lambda *_: os._exit(9))"])
def test_what_the_program_set_up_itself_stays(tmp_path: Path, run_dir: Path, own: str) -> None:
    script = write(tmp_path, "t.py", f"import faulthandler, os, signal\n{own}\n{ALONE}os.abort()\n")
    with started(script, env=environment(run_dir)) as process:
        _, err = process.communicate(timeout=20 * slowness())
        assert process.returncode == -signal.SIGABRT
    noted = {n["what"] for n in read_lines(rank_folder(run_dir, 0) / "notes.jsonl")}
    if "enable" in own:
        assert "Fatal Python error: Aborted" in err
        assert noted == {"faulthandler.txt: fatal signals"}
    else:
        assert noted == {"survival of an abort"}


def test_path_too_long_for_a_socket(tmp_path: Path, run_dir: Path) -> None:
    deep = run_dir / ("d" * 90)
    with started(write(tmp_path, "t.py", ALONE), env=environment(deep)) as process:
        out, err = process.communicate(timeout=20 * slowness())
    assert (out, err, process.returncode) == ("ready\n", "", 0)
    assert {n["what"] for n in read_lines(rank_folder(deep, 0) / "notes.jsonl")} == {"ctl.sock", "fr.sock"}
