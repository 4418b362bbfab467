"""Real trainings of two ranks in each framework: steps and a clean end, and a failure that the other rank hears of."""

import importlib.util
import sys
from pathlib import Path

import pytest

from .jobs import diagnose, run, run_ranks

KINDS = ("plain", "lightning", "transformers", "accelerate", "deepspeed")
HEARD = "[unhang] rank 1 failed: ValueError: a broken sample"
ENDED_BY_US = "rank 0 does not come back by itself; it ends now, because rank 1 failed: ValueError: a broken sample"
TIMED_OUT = "Timed out waiting 10000ms"

pytestmark = pytest.mark.timeout(100)


def needs(kind: str) -> None:
    if kind != "plain" and importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_is_marked_and_ends_well(kind: str, tmp_path: Path) -> None:
    needs(kind)
    ended = run_ranks(
        2,
        "training_loop.py",
        tmp_path / "report",
        kind,
        "healthy",
        "guarded",
        cwd=tmp_path,
    )
    assert ended.exit_code == 0, ended.output
    for line in ("rank 0: 6 steps", "rank 1: 6 steps", "[heartbeat] step 2: 2 ranks"):
        assert line in ended.output, ended.output
    # Nothing to say against the replicas or the learning.
    assert "[replicas] replicas differ" not in ended.output
    assert "[learning]" not in ended.output, ended.output
    report = diagnose(tmp_path / "report")
    assert (report["outcome"], report["findings"]) == ("clean", [])
    assert report["job"]["world_size"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_rank_hears_of_a_failure(kind: str, tmp_path: Path) -> None:
    needs(kind)
    ended = run_ranks(2, "training_loop.py", tmp_path / "report", kind, "fault", "guarded", cwd=tmp_path)
    assert ended.exit_code == 1, ended.output
    assert HEARD in ended.output, ended.output
    # It did not wait for the limit of the group.
    assert TIMED_OUT not in ended.output
    assert ENDED_BY_US in ended.output, ended.output
    report = diagnose(tmp_path / "report")
    first = report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("user-exception", [1])
    assert Path(first["location"]["file"]).name == "training_loop.py"


@pytest.mark.parametrize("kind", ["plain", pytest.param("lightning", marks=pytest.mark.whole)])
def test_without_the_guards_it_waits_for_the_limit(kind: str, tmp_path: Path) -> None:
    needs(kind)
    ended = run_ranks(2, "training_loop.py", tmp_path / "report", kind, "fault", "bare", cwd=tmp_path)
    assert ended.exit_code == 1, ended.output
    assert TIMED_OUT in ended.output, ended.output
    assert "[unhang] rank 1 failed" not in ended.output


@pytest.mark.parametrize(
    ("switch", "expected"), [("1", "UNHANG 1"), pytest.param("0", "UNHANG 0", marks=pytest.mark.whole)]
)
def test_lightning_finds_the_callback_by_its_entry_point(switch: str, expected: str, tmp_path: Path) -> None:
    needs("lightning")
    package = tmp_path / "path" / "entry-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[lightning.pytorch.callbacks_factory]\nunhang-of-the-test = unhang.inside.integrations.lightning:callbacks\n"
    )
    script = """if True:
        import lightning.pytorch as pl
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        found = [c for c in trainer.callbacks if type(c).__module__ == "unhang.inside.integrations.lightning"]
        print("UNHANG", min(len(found), 1))
    """
    ended = run([sys.executable, "-c", script], tmp_path, UNHANG_LIGHTNING=switch, PYTHONPATH=str(tmp_path / "path"))
    assert expected in ended.output, ended.output
    assert (tmp_path / "unhang-reports").exists() == (switch == "1")
