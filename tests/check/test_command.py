"""`unhang check` as it is typed: alone, with ranks of its own, under torchrun, interrupted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness

CHECK = [sys.executable, "-m", "unhang", "check"]
HOLDER = (
    "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); sys.stdin.read()"
)
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    return subprocess.run(
        [*CHECK, *arguments], capture_output=True, text=True, timeout=55 * slowness(), env=environ, **more
    )


def started_with(folder: Path) -> list[int]:
    """Processes that have this folder for their temporary files: the command, its ranks, and their workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            is_ours = f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0")
        except OSError:
            continue
        if is_ours:
            found.append(int(path.parent.name))
    return found


def test_this_machine_is_healthy_and_says_what_it_did_not_judge() -> None:
    done = run("--format", "json")
    report = json.loads(done.stdout)
    assert [f["title"] for f in report["findings"]] == []
    assert done.returncode == 0
    assert report["outcome"] == "clean"
    verdicts = {o["rule"]: o["verdict"] for o in report["outcomes"]}
    assert verdicts["rank-never-came"] == verdicts["checked-collective-failed"] == "skipped"
    assert verdicts["shm-forecast"] == "pass"
    assert "error" not in verdicts.values()
    assert all(o["reason"] for o in report["outcomes"] if o["verdict"] == "skipped")


def test_what_must_be_judged_and_was_not_is_no_success() -> None:
    assert run("--only", "collectives", "--require", "collectives").returncode == 3
    assert run("--only", "machine", "--require", "machine").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "machin"), "there is no area 'machin'; there are machine"),
        (("--plan", "gpus=many"), "--plan gpus=many"),
        (
            ("--ranks", "2", "--only", "collectives", "--collectives", "all_reduse"),
            "there is no collective 'all_reduse'",
        ),
        (("--ports", "29500,x"), "--ports takes numbers"),
        (("--largest", "huge"), "--largest takes a size"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_of_its_own_tell_one_report() -> None:
    done = run("--ranks", "2", "--collectives", "broadcast", "--only", "machine,collectives", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"]) == (0, [])
    assert report["job"]["world_size"] == 2
    verdicts = {o["rule"]: o["verdict"] for o in report["outcomes"]}
    assert verdicts["rank-never-came"] == verdicts["checked-collective-failed"] == "pass"
    assert "collectives" in done.stderr


def test_a_plan_that_is_too_large_is_told() -> None:
    done = run("--only", "machine", "--plan", "gpus=8,workers=16,shm=64M,batch=50M", "--fail-on", "wrong")
    assert done.returncode == 1
    assert "shm-too-small" in done.stdout
    assert run("--only", "machine", "--plan", "gpus=1,workers=1").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k not in _VARIABLES} | {"TMPDIR": str(tmp_path)}
    command = [*CHECK, "--ranks", "2", "--only", "machine,collectives", "--folder", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if "collectives 3/" in line:
                break
        assert len(started_with(tmp_path)) >= 5  # itself, two ranks, two workers
        os.kill(process.pid, number)
        process.stderr.close()
        process.wait(20)
        deadline = time.monotonic() + 20
        while (left := started_with(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert left == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
@pytest.mark.torchrun
def test_under_torchrun_all_ranks_end_with_one_verdict() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--standalone"]
    arguments = [
        "-m",
        "unhang",
        "check",
        "--only",
        "machine,collectives",
        "--collectives",
        "all_reduce",
        "--format",
    ]
    done = subprocess.run([*command, *arguments, "json"], capture_output=True, text=True, timeout=55 * slowness())
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"], report["job"]["world_size"]) == (0, [], 3)


def test_watching_tells_what_changes() -> None:
    environ = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [*CHECK, "--only", "network", "--ports", str(port), "--watch", "1", "--fail-on", "wrong"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as process:
        try:
            assert process.stdout
            lines = iter(process.stdout.readline, "")
            first = next(lines)
            with subprocess.Popen([sys.executable, "-c", HOLDER, str(port)], stdin=subprocess.PIPE) as holder:
                told = next((line for line in lines if f"port {port} on" in line), "")
                holder.kill()
        finally:
            process.kill()
    assert first.startswith("CLEAN")
    assert f"pid {holder.pid}" in told


@pytest.mark.whole
def test_a_scale_is_run_size_by_size() -> None:
    done = run("--scale", "2,3", "--only", "machine")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if line.startswith("CLEAN")]
    assert [head.split(":")[0] for head in heads] == ["CLEAN  2 ranks on 1 node", "CLEAN  3 ranks on 1 node"]
