"""What is told of the program while it runs, and in the report: real jobs that do wrong without an error, and the same ones put right."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness

from .faults import HERE, Case
from .harness import Result, check_healthy, result_of, run_job


def _job(*args: str, **more: object) -> Case:
    given: dict[str, object] = {"ranks": 2, "outcome": "clean", "abort_after_s": None, **more}
    return Case("program_facts", "programs/program_facts.py", args, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A job that ends well and does wrong in many ways."""
    return run_job(_job("wrong"), tmp_path_factory.mktemp("wrong"), limit_s=90)


def test_a_wrong_sum_and_limits_in_the_wrong_order_are_told_while_the_job_runs(wrong: Result) -> None:
    told = [line for line in wrong.stderr.splitlines() if line.startswith("unhang: ")]
    for text in (
        "all_reduce was given a non-contiguous tensor",
        "all_gather writes the parts of all ranks into the same tensor",
        "has a timeout of 90 s, not below the process group's 60 s",
        "leaves out 5 of 17 samples: 1 by shares of len // world, 4 by DataLoader(drop_last=True) of 2 ranks",
    ):
        assert any(text in line for line in told), wrong


def test_a_wrong_sum_is_never_clean(wrong: Result) -> None:
    report = wrong.report
    assert [f["cause"] for f in report["findings"]] == ["silent-desync"] * 3, wrong
    assert "tensors with different memory layouts" in report["findings"][1]["title"], wrong
    assert report["findings"][0]["location"]["function"] == "count", wrong
    assert "WRONG  all_reduce was given" in wrong.stderr, wrong
    assert "each rank got 14 samples, 64 tokens" in wrong.stderr, wrong


def test_a_wrong_sum_is_shown_by_a_program_and_right_with_copies(wrong: Result) -> None:
    made = warm.run([*warm.UNHANG, "reproduce", str(wrong.report_dir)], wrong.report_dir, 150 * slowness())
    assert made.returncode == 0, made
    assert "fails the same way" in made.stdout, made
    assert "tensors in one piece" in made.stdout, made


def test_the_names_of_calls_need_no_file_of_shapes(wrong: Result) -> None:
    shapes = [path.read_text() for path in wrong.report_dir.glob("bundle/ranks/*/shapes.json")]
    assert shapes == ['{"weight": [2, 3], "bias": [2]}'] * 2, wrong


def test_the_same_put_right_is_clean_and_draws_no_remark(tmp_path: Path) -> None:
    result = run_job(_job("healthy"), tmp_path, limit_s=90)
    check_healthy(result)
    assert result.report["notes"] == [], result
    assert "note:" not in result.stderr, result


def test_frames_below_python_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    case = _job(outcome="hang", stall_after_s=6, abort_after_s=1, watching=("--native",))
    result = run_job(replace(case, program="programs/conditional_collective.py", args=()), tmp_path, limit_s=120)
    assert "C++ FRAMES, INNERMOST FIRST" in result.stderr, result
    assert "c10d::Work::wait (libtorch_cpu.so)" in result.stderr, result


def _launched(tmp_path: Path, script: str, *words: str, **environment: str) -> Result:
    """A job under `unhang run` of a shell that starts torchrun."""
    command = [sys.executable, "-m", "unhang", "run", "--report-dir", "report", *words, "--", "sh", "-c", script]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PROGRAMS": str(HERE / "programs"), **environment}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90 * slowness(), check=False
    )
    return result_of(tmp_path / "report", done.returncode, done.stdout, done.stderr, 0.0)


_TORCHRUN = "torchrun --standalone --nproc-per-node 2 $PROGRAMS"


@pytest.mark.whole
@pytest.mark.parametrize("with_record", [False, True])
def test_torchrun_without_record_and_lost_variables_are_remarked(tmp_path: Path, with_record: bool) -> None:
    word, lost = ("record", "") if with_record else ("plain", "env -u NCCL_DEBUG ")
    result = _launched(tmp_path, f"{lost}{_TORCHRUN}/raises.py {word}", "--env", "NCCL_DEBUG=WARN")
    assert result.report["findings"][0]["cause"] == "user-exception", result
    said = " ".join(result.report["notes"])
    assert ("the entry point has no @record" in said) is not with_record, result
    assert ("set for the job, but missing in all of its ranks: NCCL_DEBUG" in said) is not with_record, result


@pytest.mark.whole
@pytest.mark.parametrize("word", ["", "failing"])
def test_an_environment_that_changes_is_told_and_is_the_cause_where_the_job_fails_of_it(
    tmp_path: Path, word: str
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "torch").symlink_to(Path(str(find_spec("torch").origin)).parent)
    (library / "needed_later.py").write_text("x = 1\n")
    script = f"{_TORCHRUN}/changed_environment.py {word}"
    result = _launched(tmp_path, script, PYTHONPATH=str(library))
    assert "library changes under the running job: needed_later.py is gone" in result.stderr, result
    titles = [f["title"] for f in result.report["findings"][:1]]
    wanted = "the Python environment was changed under the running job: 'needed_later' is gone from it"
    assert titles == ([wanted] if word else []), result
    assert any("the Python environment changed under the running job" in note for note in result.report["notes"]), (
        result
    )
