from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_DRIVER = """
import os, sys, types
from unhang.watch import agent_process
agent_process.watch = lambda options, run_dir, root, reports, orders: os.read(orders, 100)
from pathlib import Path
import unhang.watch.folders as folders
import unhang.cli.run as run
from unhang.cli.main import main
folders.SHARED_MEMORY = Path({memory!r})
folders.make_run_dir.__defaults__ = (folders.SHARED_MEMORY,)
folders.LONGEST_PATH = 1000
def show(bundle, report_dir, is_quiet, told):
    {show}
    os.write(2, f"shown {{bundle}} {{is_quiet}}\\n".encode())
    return types.SimpleNamespace(exit_code=0)
run.diagnose_and_show = show
sys.exit(main(["run", *sys.argv[1:]]))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `unhang run ARGUMENTS` in `tmp_path`, with stubs for the watcher and the diagnosis."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()

    def start(*arguments: str, show: str = "pass", **env: str) -> subprocess.CompletedProcess[str]:
        code = _DRIVER.format(memory=str(tmp_path / "shm"), show=show)
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **env},
        )

    return start


def job_file(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "bundle" / "job.json").read_text())
    assert isinstance(content, dict)
    return content


def test_the_job_passes_and_the_evidence_is_kept(run: Run, tmp_path: Path) -> None:
    done = run("--report-dir", "out", "--", "sh", "-c", "echo hello; exit 3", RANK="0", HF_TOKEN="abc")
    bundle = tmp_path / "out" / "bundle"
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", f"shown {bundle} False\n")
    job = job_file(tmp_path / "out")
    assert job["command"] == ["sh", "-c", "echo hello; exit 3"]
    assert job["cwd"] == str(tmp_path)
    assert job["exit_code"] == 3
    assert job["started_ns"] < job["ended_ns"]
    assert job["environment"]["RANK"] == "0"
    assert "abc" not in (bundle / "job.json").read_text()
    assert (bundle / "output.log").read_text() == "hello\n"
    assert list((tmp_path / "shm" / f"unhang-{os.getuid()}").iterdir()) == []


def test_everything_after_the_command_is_the_jobs(run: Run) -> None:
    done = run("--report-dir", "out", "echo", "--quiet", "--", "-x", "--help")
    assert done.stdout == "--quiet -- -x --help\n"
    done = run("--report-dir", "out", "-q", "--", "echo", "--", "a b", "")
    assert done.stdout == "-- a b \n"
    assert done.stderr.endswith(" True\n")


def test_the_default_folder_is_named_by_the_time(run: Run, tmp_path: Path) -> None:
    assert run("--", "true").returncode == 0
    latest, folder = sorted((tmp_path / "unhang-reports").iterdir(), reverse=True)
    assert latest.readlink() == Path(folder.name)
    assert folder.name[8] == "-"
    assert (folder / "bundle" / "job.json").exists()


def test_nonsense_in_the_environment_is_one_line(run: Run, tmp_path: Path) -> None:
    done = run("--", "true", UNHANG_STALL_AFTER="-5", UNHANG_REPORT_DIR="there", UNHANG_ABORT_AFTER="9")
    expected = "unhang: UNHANG_STALL_AFTER='-5' is ignored: it is not a positive number of seconds\n"
    assert done.returncode == 0
    assert done.stderr == f"{expected}shown {tmp_path}/there/bundle False\n"
    assert job_file(tmp_path / "there")["options"]["abort_after_s"] == 9
    assert job_file(tmp_path / "there")["options"]["stall_after_s"] is None


def test_a_report_dir_that_cannot_be_written_does_not_harm_the_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("--report-dir", "file/below", "--", "sh", "-c", "echo hello; exit 4")
    assert (done.returncode, done.stdout) == (4, "hello\n")
    first, second = done.stderr.splitlines()
    assert first.startswith("unhang: the report cannot go to file/below (Not a directory); it goes to ")
    assert second.startswith(f"shown {tmp_path}/tmp/unhang-report-")


def test_a_disk_that_fills_up_does_not_harm_the_job(run: Run, tmp_path: Path) -> None:
    # What cannot be replaced by a fake: the folder vanishes from under the running job, and a file takes its name.
    done = run("--report-dir", "out", "--", "sh", "-c", "rm -r out; touch out; exit 5")
    assert done.returncode == 5
    assert "; it goes to " in done.stderr.splitlines()[0]


def test_a_diagnosis_that_fails_is_one_line(run: Run, tmp_path: Path) -> None:
    done = run("--report-dir", "out", "--", "sh", "-c", "exit 6", show="raise ValueError('a bug')")
    assert done.returncode == 6
    expected = f"unhang: the diagnosis failed (ValueError: a bug); the evidence is in {tmp_path}/out/bundle\n"
    assert done.stderr == expected


def test_ctrl_c_during_the_diagnosis_keeps_the_exit_code(run: Run) -> None:
    done = run("--", "sh", "-c", "exit 7", show="raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (7, "unhang: interrupted while the report was made\n")


def test_a_job_that_died_of_ctrl_c_lets_a_shells_loop_stop(run: Run) -> None:
    assert run("--", "sh", "-c", "kill -INT $$").returncode == -signal.SIGINT
    assert run("--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_variables_are_set_for_the_job_and_noted(run: Run, tmp_path: Path) -> None:
    done = run("--env", "NCCL_DEBUG=WARN", "--debug-nccl", "--", "sh", "-c", "echo $NCCL_DEBUG $NCCL_DEBUG_FILE")
    assert done.stdout.startswith("WARN /"), done
    assert "nccl.%h.%p.log" in done.stdout
    [job] = tmp_path.glob("unhang-reports/2*/bundle/job.json")
    assert json.loads(job.read_text())["added"]["NCCL_DEBUG"] == "WARN"


def test_a_variable_without_a_value_is_a_usage_error(run: Run) -> None:
    done = run("--env", "NCCL_DEBUG", "--", "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "write NAME=VALUE" in done.stderr


def test_the_verdict_is_told_in_a_format_behind_the_jobs_output(tmp_path: Path) -> None:
    def run_real(*words: str) -> subprocess.CompletedProcess[str]:
        job = ["--", "sh", "-c", "echo hello; exit 3"]
        command = [sys.executable, "-m", "unhang", "run", "--report-dir", "out", *words, *job]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)

    done = run_real("--format", "json")
    first, _, rest = done.stdout.partition("\n")
    assert (done.returncode, first) == (3, "hello")
    assert json.loads(rest)["job"]["exit_code"] == 3
    done = run_real("--format", "sarif", "-o", "found.sarif")
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert json.loads((tmp_path / "found.sarif").read_text())["version"] == "2.1.0"
    done = run_real("--format", "github", "-o", "there/is/none")
    assert done.returncode == 3
    assert "there/is/none: No such file or directory; the report is in" in done.stderr
