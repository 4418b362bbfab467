"""Two workers of Ray Train on this machine: the failure of one is told, and recorded in the folder of the driver's choice."""

import importlib.util
import sys
from pathlib import Path

import pytest

from unhang.integrations import ray_train_loop, ray_training

from .jobs import PROGRAMS, diagnose, run

pytestmark = pytest.mark.timeout(150)


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("pandas") is None, reason="no ray[train]"
)
def test_the_workers_are_recorded(tmp_path: Path) -> None:
    ended = run([sys.executable, str(PROGRAMS / "ray_job.py"), str(tmp_path)], tmp_path, limit_s=140)
    assert ended.exit_code == 0, ended.output
    assert "ENDED WELL healthy" in ended.output
    assert "FAILED fault" in ended.output
    assert (tmp_path / "steps-0").read_text() == (tmp_path / "steps-1").read_text() == "4"
    healthy = diagnose(tmp_path / "healthy")
    assert (healthy["outcome"], healthy["findings"], healthy["job"]["world_size"]) == ("clean", [], 2)
    assert not any("missing in all of its ranks" in note for note in healthy["notes"])
    fault = diagnose(tmp_path / "fault")
    assert any("missing in all of its ranks: NCCL_DEBUG" in note for note in fault["notes"])
    first = fault["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("user-exception", [1])
    # By the other worker, whose output Ray shows.
    assert "[unhang] rank 1 failed: ValueError: a broken sample" in ended.output


def test_outside_of_a_guarded_loop_it_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"ray_train_loop\(train_loop\)"):
        ray_training()


def test_the_loop_keeps_its_parameters() -> None:
    def with_configuration(config: dict[str, int]) -> int:
        return config["a"]

    import inspect

    assert list(inspect.signature(ray_train_loop(with_configuration, "x")).parameters) == ["config"]
