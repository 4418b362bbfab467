"""`install()` without `unhang run`: a hang is diagnosed from the folder, a healthy job is clean, and no trouble is made."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from unhang.inside.guards import installing
from unhang.inside.recorder import recording
from unhang.inside.recorder.recording import Page

from .jobs import PROGRAMS, diagnose, run, run_ranks


@pytest.mark.parametrize("how", ["early", "late"])
def test_a_hang_is_diagnosed_from_the_folder(how: str, tmp_path: Path) -> None:
    report_dir = tmp_path / "report"
    ended = run_ranks(2, "hangs.py", report_dir, how, cwd=tmp_path)
    assert ended.exit_code == 1, ended.output
    assert (
        f"[unhang] recording into {report_dir}; if the job hangs or fails: unhang diagnose {report_dir}" in ended.output
    )
    assert ("install() comes after init_process_group" in ended.output) == (how == "late")
    assert "[unhang] rank 0 has waited for 2 s" in ended.output
    report = diagnose(report_dir)
    assert report["outcome"] == "hang"
    assert report["job"]["world_size"] == 2
    first = report["findings"][0]
    assert first["culprit_ranks"] == [1]
    fault = 1 + next(i for i, line in enumerate((PROGRAMS / "hangs.py").read_text().splitlines()) if "# FAULT" in line)
    assert (Path(first["location"]["file"]).name, first["location"]["line"]) == ("hangs.py", fault)
    assert "output.log" in {absent["what"] for absent in report["inventory"]["absent"]}


def test_the_same_hang_without_it_leaves_nothing_that_names_the_culprit(tmp_path: Path) -> None:
    ended = run_ranks(2, "hangs.py", tmp_path / "report", "without", cwd=tmp_path)
    assert ended.exit_code == 1
    assert "Timed out waiting 8000ms" in ended.output
    assert "rank 1" not in ended.output.replace("forkrun: rank 1", "")
    assert not (tmp_path / "report" / "bundle").exists()


def test_ranks_that_a_notebook_forks_write_to_its_folder(tmp_path: Path) -> None:
    ended = run([sys.executable, str(PROGRAMS / "notebook.py"), str(tmp_path), "fork"], tmp_path)
    assert ended.exit_code == 1, ended.output
    assert ended.output.count("[unhang] recording into") == 1
    (report_dir,) = (tmp_path / "unhang-reports").iterdir()
    report = diagnose(report_dir)
    assert (report["outcome"], report["job"]["world_size"]) == ("hang", 2)
    assert report["findings"][0]["culprit_ranks"] == [1]
    assert Path(report["findings"][0]["location"]["file"]).name == "notebook.py"


def test_a_healthy_job_is_clean(tmp_path: Path) -> None:
    ended = run_ranks(2, "hangs.py", tmp_path / "report", "healthy", cwd=tmp_path)
    assert ended.exit_code == 0, ended.output
    report = diagnose(tmp_path / "report")
    assert (report["outcome"], report["findings"]) == ("clean", [])


def test_under_unhang_run_nothing_new_is_made(tmp_path: Path) -> None:
    script = "import unhang.inside.guards.installing as i; print('DIR', i.install('elsewhere'))"
    ended = run(
        [sys.executable, "-m", "unhang", "run", "--report-dir", "report", "--", sys.executable, "-c", script], tmp_path
    )
    assert ended.exit_code == 0, ended.output
    assert "DIR /" in ended.output
    assert "recording into" not in ended.output
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("i.install('/proc/nowhere')", "this process is not recorded (FileNotFoundError"),
        (
            "i.install('x', stall_after_s='soon')",
            "this process is not recorded (ValueError: 'soon' is not a length of time",
        ),
    ],
)
def test_it_never_raises(statement: str, said: str, tmp_path: Path) -> None:
    ended = run(
        [sys.executable, "-c", f"import unhang.inside.guards.installing as i; print('GOT', {statement})"], tmp_path
    )
    assert ended.exit_code == 0
    assert "GOT None" in ended.output
    assert said in ended.output


def test_nonsense_in_the_variable_is_no_reason_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNHANG_STALL_AFTER", "soon")
    assert installing._limit(None) == installing.STALL_AFTER_S
    monkeypatch.setenv("UNHANG_STALL_AFTER", "2m")
    assert installing._limit(None) == 120
    assert installing._limit(5) == 5


def test_all_ranks_choose_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "RANK", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert installing.default_report_dir().name.endswith(f"-{os.getpid()}")
    monkeypatch.setenv("RANK", "3")
    assert installing.default_report_dir().name.endswith(f"-{os.getppid()}")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert installing.default_report_dir().name.endswith(f"-{os.getppid()}")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "../a b")
    assert installing.default_report_dir() == Path("unhang-reports/.._a_b")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert installing.default_report_dir() == Path("unhang-reports/slurm-17-0")


def test_secrets_do_not_go_into_the_folder() -> None:
    given = ["train.py", "--lr=0.1", "--wandb-key=abc", "--token", "abc", "--last"]
    assert installing.without_secrets(given) == ["train.py", "--lr=0.1", "--wandb-key=***", "--token", "***", "--last"]


def test_the_size_of_the_recorder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "UNHANG_ADDED"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "77")
    installing.keep_calls()
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == os.environ["TORCH_FR_BUFFER_SIZE"] == "77"
    assert os.environ["UNHANG_ADDED"] == "TORCH_NCCL_TRACE_BUFFER_SIZE"


def test_an_earlier_job_in_the_folder_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "job.json").write_text(json.dumps({"started_ns": 1}))
    (tmp_path / "verdict.json").write_text("{}")
    assert installing._make(tmp_path)
    assert not (tmp_path / "verdict.json").exists()
    (tmp_path / "verdict.json").write_text("{}")
    assert not installing._make(tmp_path), "the second rank of the same job"
    assert (tmp_path / "verdict.json").exists()
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recording.Recording:
    folder = tmp_path / "bundle" / "ranks" / f"r0-{os.getpid()}"
    folder.mkdir(parents=True)
    made = recording.Recording(str(folder), Page(str(folder / "page.bin")), {"rank": 0})
    monkeypatch.setattr(recording, "current", made)
    return made


def test_a_stall_is_declared_and_withdrawn(
    rank: recording.Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = tmp_path / "bundle" / "verdict.json"
    watch = installing.StallWatch(0.01)
    number = rank.page.begin(recording.RECV, 1, 1, 0, b"0")
    watch.turn()
    assert not verdict.exists(), "it has just moved"
    time.sleep(0.02)
    watch.turn()
    assert json.loads(verdict.read_text())["waiting_ranks"] == [0]
    assert "most recent call first" in Path(rank.path("faulthandler.txt")).read_text()
    assert "rank 0 has waited for 0 s" in capsys.readouterr().err
    size = os.path.getsize(rank.path("faulthandler.txt"))
    watch.turn()
    assert os.path.getsize(rank.path("faulthandler.txt")) == size, "once for each stall"
    rank.page.end(number)
    rank.page.count_step()
    watch.turn()
    assert json.loads(verdict.read_text())["withdrawn"] is True


def test_quiet_without_a_call_is_no_stall(rank: recording.Recording, tmp_path: Path) -> None:
    watch = installing.StallWatch(0.01)
    watch.turn()
    time.sleep(0.02)
    watch.turn()
    assert not (tmp_path / "bundle" / "verdict.json").exists()


def test_a_stall_of_another_rank_is_answered(rank: recording.Recording, tmp_path: Path) -> None:
    (tmp_path / "bundle" / "verdict.json").write_text(json.dumps({"detected_ns": 5, "withdrawn": False}))
    watch = installing.StallWatch(60)
    watch.turn()
    assert Path(rank.path("faulthandler.txt")).exists()
    assert Path(rank.path("variables.json")).exists()
