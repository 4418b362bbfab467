"""The example with all the guards, under each of its faults: a clear error on all ranks, or it goes on, within seconds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness

from .guarded import Ended, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "hardened_training.py"
# Of faults that end the job: what all ranks say of it.
ENDS = {
    "raise": "rank 1 failed: ValueError: a broken sample",
    "kill": r"rank 1 failed: no sign of life|rank 1 \(pid \d+\) has ended without an error of its training",
    "stop": r"rank 1 failed: it was stopped by a signal \(SIGSTOP",
    "leave": r"rank 1 failed: it left with sys\.exit\(0\)",
    "config": "batch_size differs: .*rank 1 has 4",
    "uneven": "rank 1 has 22 batches; rank 0 has 24 batches",
    "sync": r"WeightSyncFailed: .*\b1\b",
}
# Of faults that do not: what is said. Those of a group do not disturb each other, and share one job.
GO_ON = (
    {
        "nan": "^step 2 is skipped on all ranks",
        "memory": "^step 3 is skipped on all ranks",
        "drift": r"\[replicas\] replicas differ since step 8: first in 0\.weight",
        "frozen": r"\[learning\] rank [01]: the learning rate was 0 for all parameters",
    },
    {
        "loader": r"\[loader\] .*worker 0",
        "slow": r"\[section\] rank 0: 'validation' is over its limit of 1 s",
        "stuck": r"\[heartbeat\] .*rank 1 .*in in_step",
    },
)


def run_example(tmp_path: Path, *faults: str, launcher: str = "patient") -> Ended:
    given = [part for fault in faults for part in ("--fault", fault)]
    return run(EXAMPLE.read_text(), tmp_path, *given, launcher=launcher, limit_s=55)


def check_ended(fault: str, ended: Ended) -> None:
    assert ended.exit_code != 0, ended
    assert re.search(ENDS[fault], ended.err), ended
    # Nobody has waited for the timeout of the group, and no other rank is accused.
    assert "Timed out waiting" not in ended.err, ended
    if fault != "sync":
        assert "rank 0 failed" not in ended.err, ended


def check_went_on(ended: Ended, steps: int) -> None:
    assert ended.exit_code == 0, ended
    for rank in (0, 1):
        assert ended.out.count(f"rank {rank}: {steps} steps") == 1, ended
    assert ended.out.count("weights of version 1") == 2, ended


@pytest.mark.parametrize("fault", sorted(ENDS.keys() - {"uneven"}))
def test_all_ranks_stop_with_the_reason(fault: str, tmp_path: Path) -> None:
    check_ended(fault, run_example(tmp_path, fault))


@pytest.mark.parametrize("said", GO_ON, ids=lambda said: "-".join(said))
def test_all_ranks_go_on(said: dict[str, str], tmp_path: Path) -> None:
    ended = run_example(tmp_path, *said)
    check_went_on(ended, 24 - len(said.keys() & {"nan", "memory"}))
    for line in said.values():
        assert re.search(line, ended.out + ended.err, re.MULTILINE), ended


@pytest.mark.whole
@pytest.mark.torchrun
def test_it_trains_under_torchrun(tmp_path: Path) -> None:
    ended = run_example(tmp_path, launcher="torchrun")
    check_went_on(ended, 24)
    for line in ("[train_setup] batch_size = 8", "[heartbeat] step 10: 2 ranks"):
        assert line in ended.err, ended
    for said in GO_ON:
        for line in said.values():
            assert not re.search(line, ended.out + ended.err, re.MULTILINE), ended


@pytest.mark.whole
@pytest.mark.torchrun
def test_uneven_batches_are_named_under_torchrun(tmp_path: Path) -> None:
    check_ended("uneven", run_example(tmp_path, "uneven", launcher="torchrun"))


def test_the_faults_are_listed() -> None:
    listed = warm.run([sys.executable, str(EXAMPLE), "--list-faults"], EXAMPLE.parent, 50 * slowness())
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert set(names) == {"NAME", "none", *ENDS, *GO_ON[0], *GO_ON[1]}
