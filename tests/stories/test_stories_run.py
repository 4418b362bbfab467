"""The stories as they are told: broken they are named rightly, fixed they end well and learn, and their pages say the truth."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.ranks.faults import Case
from tests.ranks.harness import Result, _unhang, check_fault, check_healthy, run_job
from tests.slowness import slowness

from .cases import BROKEN, FOLDER, STORIES, case_of, marked_lines, program

# A shorter run of the same program, where the whole one would take long.
SHORTER = {
    "masked_lm": ("--steps", "30"),
    "gan_diffusion": ("--epochs", "2"),
    "reid": ("--epochs", "2"),
    "nanochat": ("--steps", "20"),
}


def losses(result: Result) -> list[float]:
    return [float(loss) for loss in re.findall(r"\bloss (\d+\.\d+)", result.stdout)]


@pytest.mark.whole  # what it leaves behind is judged in tests/ranks/test_recordings.py
@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_the_incident_is_named_rightly(case: Case, tmp_path: Path) -> None:
    check_fault(case, run_job(case, tmp_path))


# The one that learns soonest; the others take a dozen seconds of two cores each. That async_rl ends well: tests/verify/test_verify_stories.py.
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.whole] * (name != "reid")) for name in STORIES])
def test_the_fixed_program_ends_well_and_learns(name: str, tmp_path: Path) -> None:
    result = run_job(case_of(STORIES[name], *SHORTER.get(name, ()), abort_after_s=60), tmp_path)
    check_healthy(result)
    found = losses(result)
    assert len(found) > 1, result
    assert found[-1] < 0.9 * found[0], result


def run_by_itself(story: dict[str, Any], cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without `unhang run`."""
    return warm.run(warm.forkrun("--eager", 4, program(story), *arguments), cwd, 50 * slowness())


@pytest.mark.whole  # smaller jobs with a stopped rank: tests/ranks/test_guard_teardown.py
def test_a_guard_ends_the_job_whose_rank_stands_still(tmp_path: Path) -> None:
    done = run_by_itself(STORIES["masked_lm"], tmp_path, "--broken", "--guard", "--steps", "30")
    assert done.returncode, done.stdout + done.stderr
    assert "rank 3 failed: it was stopped by a signal" in done.stderr, done.stderr


@pytest.mark.whole
def test_a_guard_sees_that_the_loss_scale_falls_to_nothing(tmp_path: Path) -> None:
    done = run_by_itself(STORIES["gan_diffusion"], tmp_path, "--fault", "zero_scale", "--guard", "--epochs", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout + done.stderr
    assert re.search(r"\[learning\] rank 0: the GradScaler skipped \d+ of the last \d+ optimizer steps", told), told


@pytest.mark.whole  # smaller jobs of this kind: tests/ranks/test_not_learning.py
@pytest.mark.timeout(120)
def test_a_job_that_trains_nothing_is_told_so_although_it_ends_well(tmp_path: Path) -> None:
    result = run_job(case_of(STORIES["gan_diffusion"], "--fault", "zero_scale", abort_after_s=60), tmp_path)
    (finding,) = result.report["findings"]
    assert (result.exit_code, result.report["outcome"]) == (0, "clean"), result
    assert (finding["cause"], finding["culprit_ranks"]) == ("not-learning", []), result
    assert "no optimizer step was taken" in finding["title"], result
    assert "nan loss scales [" in " ".join(line["text"] for line in finding["evidence"]), result
    verified = subprocess.run(
        [*_unhang(), "verify", "--after", str(result.report_dir)], capture_output=True, text=True, timeout=60
    )
    assert verified.returncode == 1, verified.stdout
    assert "not-learning" in verified.stdout


@pytest.mark.parametrize("name", STORIES)
def test_the_table_fits_the_program(name: str) -> None:
    story = STORIES[name]
    tree = ast.parse(program(story).read_text())
    faults = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAULTS"
    )
    selected = re.search(r'"--broken".*const="(\w+)"', program(story).read_text())
    assert selected, name
    assert set(faults) == {"none", selected[1], *(fault["name"] for fault in story["faults"])}
    for truth in (story, *story["faults"]):
        if "marker" in truth:
            assert marked_lines(story, truth["marker"]), truth
    assert len(program(story).read_text().splitlines()) <= 200


@pytest.mark.parametrize("name", STORIES)
def test_unhang_is_imported_only_where_the_guards_are_asked_for(name: str) -> None:
    tree = ast.parse(program(STORIES[name]).read_text())
    assert not [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and "unhang" in ast.unparse(n)]


@pytest.mark.parametrize("name", STORIES)
def test_the_page_tells_the_verdict(name: str) -> None:
    story, page = STORIES[name], (FOLDER / name / "README.md").read_text()
    assert story["title"] in page
    assert f"[{story['cause']}, " in page
    assert "```diff" in page
    assert f"({name}/README.md)" in (FOLDER / "README.md").read_text()
