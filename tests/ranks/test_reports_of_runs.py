"""What `unhang diagnose` makes of the reports of real runs: many in a folder, packed, alone, or beside each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness

from .faults import HERE
from .harness import _unhang as unhang

TRAIN = """\
import torch.distributed as dist
from pkg.steps import step

dist.init_process_group("gloo")
for number in range(4):
    step(number)
dist.barrier()
dist.destroy_process_group()
"""
STEPS = """\
import torch
import torch.distributed as dist


def step(number):
    dist.all_reduce(torch.ones(3))
"""
RANK = """\
import os, time
import torch.distributed as dist

meet = f"file://{os.environ['MEET']}"
dist.init_process_group("gloo", init_method=meet, rank=int(os.environ["RANK"]), world_size=4)
dist.barrier()
if dist.get_rank() == 0:
    time.sleep(3600)
dist.barrier()
"""
# As srun starts it: one task, and one `unhang run`, for each node. The ranks are forks, which have torch already.
NODE = f"""\
import os, sys

sys.path.append({str(HERE)!r})
import forkrun

first = 2 * int(os.environ["NODE"])
ranks = []
for i in range(2):
    if (pid := os.fork()) == 0:
        os.environ.update(RANK=str(first + i), LOCAL_RANK=str(i))
        forkrun.be_script("rank.py", [])
    ranks.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks))
"""


def start(folder: Path, report: str, *command: str, options: tuple[str, ...] = (), **env: str) -> warm.Job:
    whole = [*unhang(), "run", "-q", *options, "--report-dir", report, "--", sys.executable, *command]
    return warm.popen(whole, folder, {**os.environ, **env})


def exit_code(job: warm.Job) -> int | None:
    """Blocks: until it has ended."""
    try:
        job.communicate(timeout=50 * slowness())
    finally:
        warm.end(job)
    return job.returncode


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports in `unhang-reports`: `one` of a program, `two` of its copy, `three` of a changed copy, `nodes/` of a hang."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two", "three"):
        (folder / name / "pkg").mkdir(parents=True)
        (folder / name / "train.py").write_text(TRAIN)
        (folder / name / "pkg" / "steps.py").write_text(STEPS.replace("def", "\ndef") if name == "three" else STEPS)
    (folder / "node.py").write_text(NODE)
    (folder / "rank.py").write_text(RANK)
    jobs = [
        start(folder, f"unhang-reports/nodes/node{node}", str(folder / "node.py"), options=("--stall-after", "5", "--abort-after", "2"),
              NODE=str(node), WORLD_SIZE="4", MEET=str(folder / "meet"))
        for node in range(2)
    ]  # fmt: skip
    for job in jobs:
        exit_code(job)
    for name in ("one", "two", "three"):
        launcher = (str(HERE / "forkrun.py"), "2", str(folder / name / "train.py"))
        assert exit_code(start(folder, f"unhang-reports/{name}", *launcher)) == 0
    return folder


Diagnose = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def diagnose(runs: Path) -> Diagnose:
    """Runs `unhang diagnose ARGUMENTS` beside the reports."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return warm.run([*unhang(), "diagnose", *arguments], runs, 50 * slowness(), {**os.environ, **env})

    return run


def test_a_folder_of_runs_is_a_list_and_no_job(diagnose: Diagnose) -> None:
    done = diagnose("unhang-reports")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split()[2] for line in lines] == ["CLEAN", "CLEAN", "CLEAN", "HANG"]
    assert "unhang-reports/three" in lines[0]
    assert "exit 0" in lines[0]
    assert "unhang-reports/nodes/node0 unhang-reports/nodes/node1" in lines[3]
    assert "exit 124" in lines[3]
    assert "rank.py:8" in lines[3]


def test_the_list_as_json(diagnose: Diagnose, runs: Path) -> None:
    found = json.loads(diagnose("unhang-reports", "--format", "json").stdout)
    assert found["schema"] == "unhang.runs/1"
    assert [run["outcome"] for run in found["runs"]] == ["clean", "clean", "clean", "hang"]
    hang = found["runs"][3]
    assert hang["paths"] == ["unhang-reports/nodes/node0", "unhang-reports/nodes/node1"]
    assert (hang["exit_code"], hang["command"][-1]) == (124, str(runs / "node.py"))


def test_a_stored_verdict_is_not_judged_again(diagnose: Diagnose, runs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(runs / "unhang-reports" / name, tmp_path / name)
    report = tmp_path / "one" / "report.json"
    report.write_text(report.read_text().replace('"clean"', '"straggler"'))
    (tmp_path / "two" / "report.json").unlink()
    done = diagnose(str(tmp_path))
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["CLEAN", "STRAGGLER"]
    assert done.returncode == 3


def test_the_nodes_of_one_job_are_judged_together(diagnose: Diagnose) -> None:
    done = diagnose("unhang-reports/nodes", "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema"], found["job"]["world_size"]) == (1, "unhang.report/1", 4)
    assert found["findings"][0]["culprit_ranks"] == [0]


def test_runs_that_are_named_together_are_one_job(diagnose: Diagnose) -> None:
    done = diagnose("unhang-reports/nodes/node0", "unhang-reports/nodes/node1")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("HANG  rank")
    done = diagnose("unhang-reports/one", "unhang-reports/two")
    assert done.stderr.startswith("unhang: they do not look like nodes of one job")


@pytest.mark.parametrize("more", [("--against", "unhang-reports/one"), ("--format", "html"), ("--trace", "x.json.gz")])
def test_what_takes_one_run_refuses_a_folder_of_them(more: tuple[str, ...], diagnose: Diagnose) -> None:
    done = diagnose("unhang-reports", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("unhang: unhang-reports holds 4 runs")
    assert len(done.stderr.splitlines()) == 1


def test_without_paths_the_newest_report_is_judged(diagnose: Diagnose, runs: Path) -> None:
    done = diagnose()
    assert done.stdout == diagnose("unhang-reports/three").stdout
    assert done.stderr.startswith("unhang: unhang-reports/three is the newest report, of a run that began 2")
    done = diagnose(UNHANG_REPORT_DIR="unhang-reports/nodes")
    assert done.stdout.startswith("HANG  rank")
    assert done.stderr.startswith("unhang: unhang-reports/nodes/node0, unhang-reports/nodes/node1 is the newest report")
    done = diagnose(UNHANG_REPORT_DIR=str(runs / "unhang-reports" / "one"))
    assert done.stderr.startswith(f"unhang: {runs}/unhang-reports/one is the newest report")


@pytest.mark.parametrize("name", ["report.json", "report.html", "report.txt", "*"])
def test_a_report_leads_to_the_bundle_beside_it(name: str, diagnose: Diagnose) -> None:
    folder = "unhang-reports/nodes/node1"
    assert diagnose(f"{folder}/{name}").stdout == diagnose(folder).stdout


@pytest.mark.parametrize("name", ["", "report.json", "report.html", "report.txt"])
def test_a_report_whose_evidence_is_gone_is_shown(name: str, diagnose: Diagnose, runs: Path, tmp_path: Path) -> None:
    for file in (runs / "unhang-reports" / "nodes" / "node1").glob("report.*"):
        shutil.copy(file, tmp_path)
    done = diagnose(str(tmp_path / name), "--format", "json")
    assert done.stdout == (tmp_path / "report.json").read_text()
    assert done.stderr == f"unhang: this is what {tmp_path}/report.json says; the evidence is not beside it\n"
    assert done.returncode == diagnose("unhang-reports/nodes/node1").returncode


def test_our_own_page_is_no_log(diagnose: Diagnose, runs: Path, tmp_path: Path) -> None:
    shutil.copy(runs / "unhang-reports" / "one" / "report.html", tmp_path / "page.html")
    done = diagnose(str(tmp_path / "page.html"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"unhang: {tmp_path}/page.html: unhang wrote it, and it is not evidence; give the report.json or the bundle of the run\n"
    )


@pytest.mark.parametrize("name", ["b.tar", "b.tar.gz", "b.tgz", "b.zip"])
def test_an_archive_of_a_report_is_read(name: str, diagnose: Diagnose, runs: Path, tmp_path: Path) -> None:
    source = runs / "unhang-reports" / "nodes" / "node1" / "bundle"
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            for path in source.rglob("*"):
                packed.write(path, path.relative_to(source.parent))
    else:
        with tarfile.open(tmp_path / name, "w:gz" if "gz" in name else "w") as packed_tar:
            packed_tar.add(source, "bundle")
    assert diagnose(str(tmp_path / name)).stdout == diagnose(str(source)).stdout


def test_an_archive_of_several_reports_is_a_list(diagnose: Diagnose, runs: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as packed:
        packed.add(runs / "unhang-reports", "r")
    lines = diagnose(str(tmp_path / "all.tgz")).stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["CLEAN", "CLEAN", "CLEAN", "HANG"]
    assert f"{tmp_path}/all.tgz/r/three" in lines[0]


def test_a_program_and_its_copy_are_the_same(diagnose: Diagnose) -> None:
    assert diagnose("unhang-reports/one", "--against", "unhang-reports/two").stdout.startswith("SAME  ")


def test_a_changed_copy_differs_in_the_line_that_changed(diagnose: Diagnose) -> None:
    first = diagnose("unhang-reports/one", "--against", "unhang-reports/three").stdout.splitlines()[0]
    assert first.startswith("DIFFERENT  ranks 0, 1: ")
    assert "at pkg/steps.py:6 in step against" in first
    assert first.endswith("at pkg/steps.py:7 in step")


def test_reproduce_takes_a_pattern(runs: Path) -> None:
    def reproduced(*paths: str) -> tuple[int, str, str]:
        arguments = ["reproduce", "--no-run", "--output", "repro.py", *paths]
        done = warm.run([*unhang(), *arguments], runs, 50 * slowness())
        return done.returncode, done.stdout, done.stderr

    folder = "unhang-reports/nodes"
    assert reproduced(f"{folder}/node[01]") == reproduced(f"{folder}/node0", f"{folder}/node1")


@pytest.mark.whole
@pytest.mark.torchrun
def test_copies_under_torchrun_are_the_same(diagnose: Diagnose, runs: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for name in ("one", "two"):
        assert exit_code(start(runs, f"torchrun-{name}", *torchrun, f"{name}/train.py")) == 0
    assert diagnose("torchrun-one", "--against", "torchrun-two").stdout.startswith("SAME  ")
