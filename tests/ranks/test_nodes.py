"""One job under several `unhang run`s, as on several nodes: they judge together; alone, none accuses what it cannot see."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.ports import free_port
from tests.slowness import slowness

from .faults import HERE
from .harness import HUNG_JOB_ENDED, _unhang, watchers

PROGRAM = HERE / "programs" / "rank0_sleeps.py"


@contextlib.contextmanager
def _runs(
    commands: Sequence[Sequence[str]],
    environments: Sequence[dict[str, str]],
    cwd: Path,
    stall_after_s: int = 4,
    join: str = "off",
) -> Iterator[list[warm.Job]]:
    """Starts each command under an `unhang run` of its own, and leaves none behind."""
    limits = ["--stall-after", str(stall_after_s), "--abort-after", str(stall_after_s + 8), "--join", join]
    started = [
        warm.popen(
            [*_unhang(), "run", *limits, "--", *command], cwd, {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in started:
            process.communicate(timeout=30 * slowness())
            warm.end(process)


def _tasks(report_dirs: Sequence[Path]) -> list[dict[str, str]]:
    """What srun gives each task, in the names that torch reads."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, "RANK": str(r), "UNHANG_REPORT_DIR": str(d)} for r, d in enumerate(report_dirs)]


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _diagnose(*folders: Path) -> dict[str, Any]:
    command = [*_unhang(), "diagnose", *map(str, folders), "--format", "json"]
    done = warm.run(command, folders[0], 50 * slowness())
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(120)
def test_a_rank_of_another_run_is_not_accused(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    command = [sys.executable, str(PROGRAM), "--sleep"]
    with _runs([command, command], _tasks(folders), tmp_path) as (sleeper, waiter):
        _, told = waiter.communicate(timeout=80 * slowness())
        assert waiter.returncode == HUNG_JOB_ENDED, told
        sleeper.send_signal(signal.SIGTERM)
        sleeper.communicate(timeout=30 * slowness())
    report = _report(folders[1])
    first = report["findings"][0]
    assert (report["outcome"], report["hang"]["kind"]) == ("hang", "suspected")
    assert (first["title"], first["culprit_ranks"]) == ("rank 1 waited for rank 0, which was not seen from here", [])
    assert first["fixes"][0]["command"].startswith(f"unhang diagnose {folders[1]} ")
    assert "left no dump" not in told
    assert "rank 0  not seen from here" in told
    joined = _diagnose(*folders)
    assert (joined["findings"][0]["cause"], joined["findings"][0]["culprit_ranks"]) == ("slow-rank0-work", [0])
    assert Path(joined["findings"][0]["location"]["file"]).name == PROGRAM.name


@pytest.mark.timeout(120)
def test_a_healthy_pair_is_clean_and_a_second_job_overwrites_nothing(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    command = [sys.executable, str(PROGRAM)]
    for _ in range(2):
        with _runs([command, command], _tasks([shared, shared]), tmp_path) as pair:
            texts = [process.communicate(timeout=60 * slowness())[1] for process in pair]
            assert [process.returncode for process in pair] == [0, 0], texts
    folders = [p.parent.parent for p in shared.glob("**/bundle/job.json")]
    assert len(folders) == 4
    assert {_report(folder)["outcome"] for folder in folders} == {"clean"}
    assert "1 of 2 ranks ran to the end" in (shared / "report.txt").read_text()
    assert len([line for text in texts for line in text.splitlines() if "holds the report of another run" in line]) == 2
    joined = _diagnose(shared)
    assert (joined["outcome"], joined["job"]["world_size"], joined["findings"]) == ("clean", 2, [])


@pytest.mark.timeout(120)
def test_a_peer_that_died_elsewhere_is_not_made_up(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    command = [sys.executable, str(PROGRAM), "--sleep"]
    with _runs([command, command], _tasks(folders), tmp_path, stall_after_s=30) as (victim, other):
        os.kill(int(victim.first_line(60 * slowness())), signal.SIGKILL)
        _, told = other.communicate(timeout=60 * slowness())
        victim.communicate(timeout=30 * slowness())
    report = _report(folders[1])
    assert report["outcome"] == "crash", told
    assert not [f for f in report["findings"] if f["culprit_ranks"]]
    assert "rank 0, which was not seen from here" in report["findings"][0]["title"]
    joined = _diagnose(*folders)
    assert (joined["findings"][0]["cause"], joined["findings"][0]["culprit_ranks"]) == ("rank-crashed-earlier", [0])


@pytest.mark.whole
@pytest.mark.torchrun
@pytest.mark.timeout(180)
def test_two_nodes_under_torchrun_accuse_only_what_they_see(tmp_path: Path) -> None:
    program = HERE / "programs" / "event_wait.py"  # rank 3, on the second node, waits for itself
    folders = [tmp_path / f"node{n}" for n in range(2)]
    launch = [*warm.TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2"]
    master = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    commands = [[*launch, "--node-rank", str(n), *master, str(program)] for n in range(2)]
    environments = [{"UNHANG_REPORT_DIR": str(folder)} for folder in folders]
    with _runs(commands, environments, tmp_path, stall_after_s=8) as pair:
        texts = [process.communicate(timeout=150 * slowness())[1] for process in pair]
    here = _report(folders[0])
    assert here["findings"][0]["culprit_ranks"] == [], texts[0]
    assert "not seen from here" in here["findings"][0]["title"], texts[0]
    assert not [f for f in here["findings"] if f["cause"] == "rank-crashed-earlier"]
    there = _report(folders[1])["findings"][0]
    joined = _diagnose(*folders)
    for first in (there, joined["findings"][0]):
        assert (first["culprit_ranks"], Path(first["location"]["file"]).name) == ([3], program.name)
    assert joined["job"]["world_size"] == 4


def _launches(program: Path, *arguments: str) -> list[list[str]]:
    """Torchrun on two nodes of two ranks each."""
    launch = [*warm.TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2"]
    master = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [[*launch, "--node-rank", str(n), *master, str(program), *arguments] for n in range(2)]


@pytest.mark.torchrun
@pytest.mark.timeout(180)
def test_two_nodes_find_a_divergence_together(tmp_path: Path) -> None:
    program = HERE / "programs" / "conditional_collective.py"
    folders = [tmp_path / f"node{n}" for n in range(2)]
    environments = [{"UNHANG_REPORT_DIR": str(folder)} for folder in folders]
    with _runs(_launches(program), environments, tmp_path, stall_after_s=60, join="auto") as pair:
        texts = [process.communicate(timeout=150 * slowness())[1] for process in pair]
    assert [process.returncode for process in pair] == [HUNG_JOB_ENDED] * 2, texts
    (report_dir,) = [folder for folder in folders if (folder / "report.json").exists()]
    report = _report(report_dir)
    first = report["findings"][0]
    assert (report["hang"]["kind"], first["cause"], first["culprit_ranks"]) == ("proven", "code-divergence", [0]), texts
    assert Path(first["location"]["file"]).name == program.name
    assert report["job"]["world_size"] == 4
    assert report["hang"]["waiting_ranks"] == [0, 1, 2, 3]
    other = texts[1 - folders.index(report_dir)]
    line = next(x for x in other.splitlines() if x.startswith("unhang: HANG over all nodes (proven): "))
    assert "rank 0 called all_reduce alone" in line
    assert line.endswith(f":{report_dir}")
    again = _diagnose(report_dir)["findings"][0]  # the one bundle holds the ranks of both nodes
    assert (again["title"], again["culprit_ranks"]) == (first["title"], [0])


@pytest.mark.torchrun
@pytest.mark.timeout(180)
def test_a_healthy_job_on_two_nodes_is_left_alone(tmp_path: Path) -> None:
    folders = [tmp_path / f"node{n}" for n in range(2)]
    environments = [{"UNHANG_REPORT_DIR": str(folder)} for folder in folders]
    program = HERE / "programs" / "rank0_sleeps.py"
    with _runs(_launches(program), environments, tmp_path, join="auto") as pair:
        texts = [process.communicate(timeout=150 * slowness())[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], texts
    reports = [_report(folder) for folder in folders]
    assert {report["outcome"] for report in reports} == {"clean"}
    assert "4 ranks ran to the end" in "".join((f / "report.txt").read_text() for f in folders)
    for text in texts:
        assert len([x for x in text.splitlines() if x.startswith("unhang:")]) == 1, text


@pytest.mark.timeout(180)
def test_a_rank_that_others_wait_for_is_found_on_the_other_node(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    command = [sys.executable, str(PROGRAM), "--sleep"]
    with _runs([command, command], _tasks(folders), tmp_path, join="auto") as pair:
        texts = [process.communicate(timeout=80 * slowness())[1] for process in pair]
    assert [process.returncode for process in pair] == [HUNG_JOB_ENDED] * 2, texts
    (report_dir,) = [folder for folder in folders if (folder / "report.json").exists()]
    first = _report(report_dir)["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("slow-rank0-work", [0]), texts
    told = texts[1 - folders.index(report_dir)]
    assert "STALLED over all nodes (suspected): rank 0 " in told
    assert "not seen from here" not in "".join(texts)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.timeout(180)
def test_a_watcher_that_is_killed_leaves_the_job_alone(victim: int, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    command = [sys.executable, str(HERE / "programs" / "steps_of_seconds.py"), "8"]
    with _runs([command, command], _tasks(folders), tmp_path, stall_after_s=30, join="auto") as pair:
        while not all((tmp_path / f"rank{rank}_steps").exists() for rank in range(2)):
            time.sleep(0.1)
        (watcher,) = watchers(pair[victim])
        os.kill(watcher, signal.SIGKILL)
        texts = [process.communicate(timeout=80 * slowness())[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], texts
    assert "the watcher ended unexpectedly (signal 9); another one goes on" in texts[victim]
    for folder in folders:
        assert _report(folder)["findings"] == []


@pytest.mark.torchrun
@pytest.mark.timeout(180)
def test_a_failure_is_told_on_every_node(tmp_path: Path) -> None:
    program = HERE / "programs" / "user_exception.py"
    shared = tmp_path / "shared"
    environments = [{"UNHANG_REPORT_DIR": str(shared)} for _ in range(2)]
    with _runs(_launches(program), environments, tmp_path, stall_after_s=60, join="auto") as pair:
        texts = [process.communicate(timeout=150 * slowness())[1] for process in pair]
    told = next((text for text in texts if "CRASH over all nodes" in text), "")
    assert told, texts
    (judged,) = [text for text in texts if text is not told]
    first = _report(next(f for f in (shared, *shared.iterdir()) if (f / "report.json").exists()))["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("user-exception", [2]), texts
    assert first["title"] in judged
    assert first["title"] in told
    assert len(list(shared.glob("**/report.json"))) == 1  # one report; the other node keeps its evidence


FEW_FOR_MANY = """
import sys
from unhang.analyze import alike
from unhang.watch import hub_agent
hub_agent.MANY_RANKS, alike.MOST_NODES, alike.LEAST_OF_MOST = 1, 4, 1
from unhang.cli.main import main
sys.exit(main())
"""


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_few_ranks_are_read_for_many(tmp_path: Path) -> None:
    world, port = 5, str(free_port())
    program = HERE / "programs" / "conditional_collective.py"
    command = [sys.executable, "-c", FEW_FOR_MANY, "run", "--join", "auto", "--", sys.executable, str(program)]
    jobs = []
    for rank in range(world):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**os.environ, **place, "OMP_NUM_THREADS": "1", "UNHANG_REPORT_DIR": str(tmp_path / f"n{rank}")}
        jobs.append(subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
    try:
        texts = [job.communicate(timeout=80 * slowness())[1] for job in jobs]
    finally:
        for job in jobs:
            job.terminate()
    assert [job.returncode for job in jobs] == [HUNG_JOB_ENDED] * world, texts
    (report_dir,) = [folder for folder in tmp_path.glob("n*") if (folder / "report.json").exists()]
    report = _report(report_dir)
    first = report["findings"][0]
    assert (report["hang"]["kind"], first["cause"], first["culprit_ranks"]) == ("proven", "code-divergence", [0]), texts
    assert report["job"]["world_size"] == world
    assert len(json.loads((report_dir / "bundle" / "alike.json").read_bytes())["read"]) == 4
    assert "1 of 5 ranks  not read: each stands as one of those does that were read" in (
        " ".join((report_dir / "report.txt").read_text().split()).replace("ranks not", "ranks  not")
    )
