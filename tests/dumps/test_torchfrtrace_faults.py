"""Where torchfrtrace (torch 2.13) goes wrong on small jobs whose truth is plain, and that unhang does not.

Each test looks at the other tool's own answer first: should a later torch answer better, the test says so by failing. The
jobs are in `frtrace_jobs.py`.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.dumps import frtrace
from tests.dumps.frtrace_jobs import CASES, UNEVEN, WORLDS, marker_of
from unhang.diagnosis import Judged, judge_paths
from unhang.read.dumps.reader import DumpReader

UNHANG = Path(sys.executable).parent / "unhang"


@dataclass(frozen=True)
class Case:
    """Dumps, and what torchfrtrace says of them."""

    folder: Path
    theirs: frtrace.Answer

    @property
    def ours(self) -> Judged:
        return judge_paths([self.folder], partial(DumpReader, use_cache=False))

    @property
    def we_accuse(self) -> set[int]:
        """The ranks that any finding of ours names."""
        return {rank for f in self.ours.diagnosis.findings for rank in f.culprit_ranks}

    def we_find_nothing(self) -> bool:
        """Whether we read all calls, and none of them makes us say anything."""
        calls, diagnosis = self.ours.case.calls, self.ours.diagnosis
        dumps = [pickle.loads(path.read_bytes()) for path in self.folder.glob("nccl_trace_rank_*")]
        assert len(calls) == sum(len(dump["entries"]) for dump in dumps)
        return diagnosis.findings == () and diagnosis.inventory.absent == () and diagnosis.exit_code == 0


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    root = tmp_path_factory.mktemp("torchfrtrace")
    questions = {}
    for name, (write, arguments) in CASES.items():
        write(root / name)
        questions[name] = (str(root / name), *arguments)
    theirs = frtrace.answers({**questions, "its help": ("--help",)})
    return {name: Case(root / name, theirs[name]) for name in theirs}


@pytest.mark.parametrize("name", ["code in a pickle", "code in the ranks of a group"])
def test_1_it_executes_what_a_dump_tells_it_to(cases: Mapping[str, Case], name: str) -> None:
    it = cases[name]
    marker = marker_of(it.folder)
    assert marker.exists(), "torchfrtrace ran the code"
    marker.unlink()
    assert it.we_accuse == {2}
    assert not marker.exists()


def test_1_the_file_with_code_is_named(cases: Mapping[str, Case]) -> None:
    absent = cases["code in a pickle"].ours.diagnosis.inventory.absent
    told = [f"{a.what}: {a.reason}" for a in absent if "nccl_trace_rank_3" in f"{a.what} {a.reason}"]
    assert told, absent


def test_2_ranks_with_fewer_calls_are_accused_of_nothing(cases: Mapping[str, Case]) -> None:
    it = cases["different numbers of calls"]
    assert it.theirs.missing == {2, 3}, "both are healthy: all calls of all ranks have completed"
    assert it.we_find_nothing()


def test_2_dumps_that_hold_only_open_calls(cases: Mapping[str, Case]) -> None:
    it = cases["only open calls"]
    assert 0 in it.theirs.missing, "rank 0 waits like its peers"
    assert it.we_accuse == {2}


@pytest.mark.parametrize(
    ("name", "cause"),
    [("rank 0 makes another call", "code-divergence"), ("rank 0 has another size", "size-mismatch")],
)
def test_3_the_majority_is_right_not_the_first_rank(cases: Mapping[str, Case], name: str, cause: str) -> None:
    it = cases[name]
    assert it.theirs.culprits == {1, 2, 3}
    first = it.ours.diagnosis.findings[0]
    assert (first.culprit_ranks, first.cause) == ((0,), cause)


def test_4_a_rank_that_is_a_moment_ahead_is_no_fault(cases: Mapping[str, Case]) -> None:
    it = cases["a running job"]
    assert "COLLECTIVE_STATE_MISMATCH" in it.theirs.text
    assert it.theirs.culprits == {1, 2, 3}
    assert it.we_find_nothing()


def test_5_a_healthy_pipeline(cases: Mapping[str, Case]) -> None:
    it = cases["a healthy pipeline"]
    assert it.theirs.accused, "every send has met its receive"
    assert it.we_find_nothing()


def test_5_a_healthy_ring_that_receives_first(cases: Mapping[str, Case]) -> None:
    it = cases["a healthy ring that receives first"]
    assert "MISMATCH" in it.theirs.text
    assert it.we_find_nothing()


@pytest.mark.parametrize("op", UNEVEN)
def test_6_uneven_collectives_are_no_mismatch(cases: Mapping[str, Case], op: str) -> None:
    it = cases[f"uneven {op}"]
    assert "mismatch" in it.theirs.text.lower() or it.theirs.accused, it.theirs
    assert it.we_find_nothing()


def test_7_an_all_gather_into_a_tensor_of_the_wrong_size(cases: Mapping[str, Case]) -> None:
    it = cases["all_gather without room"]
    assert not it.theirs.accused
    assert "mismatch" not in it.theirs.text.lower()
    first = it.ours.diagnosis.findings[0]
    assert (first.cause, first.culprit_ranks) == ("size-mismatch", (0, 1, 2, 3))


def test_8_the_root_of_the_waits_is_in_another_group(cases: Mapping[str, Case]) -> None:
    it = cases["a culprit in another group"]
    assert "Culprit rank 2" in next(line for line in it.theirs.text.splitlines() if "error msg" in line)
    assert 3 not in it.theirs.culprits
    assert it.we_accuse == {3}
    first = it.ours.diagnosis.findings[0]
    assert set(first.victim_ranks) == {0, 1, 2, 4, 5, 6, 7}
    assert first.process_group is not None
    assert first.process_group["pg_desc"] == "tp1"
    assert first.location is not None
    assert first.location.line == 33


def test_8_the_limit_of_one_group_ends_the_analysis_of_all(cases: Mapping[str, Case]) -> None:
    it = cases["false mismatches before the true one"]
    assert "Too many mismatches" in it.theirs.text
    assert 6 not in it.theirs.accused
    assert it.we_accuse == {6}


ENDS = {
    "a missing file": "AssertionError: Missing dump files from ranks {3}",
    "a truncated file": "Error",
    "a stray file": "ValueError: invalid literal for int()",
    "a numbered stray file": "ValueError: Unable to automatically determine the common prefix",
    "another version": "AssertionError: Rank 3 has different version",
    "an unknown op": "AssertionError: all_permute is not a supported operation",
    "a hashed group name": "KeyError",
    "gloo": "KeyError",
}


@pytest.mark.parametrize("name", ENDS)
def test_9_one_odd_file_does_not_end_the_analysis(cases: Mapping[str, Case], name: str) -> None:
    it = cases[name]
    assert ENDS[name] in it.theirs.error
    assert not it.theirs.accused
    assert it.we_accuse == {2}


@pytest.mark.parametrize("name", ["a missing file", "a truncated file"])
def test_9_what_is_lost_is_told(cases: Mapping[str, Case], name: str) -> None:
    absent = cases[name].ours.diagnosis.inventory.absent
    assert any("rank 3" in a.what or "rank_3" in f"{a.what} {a.reason}" for a in absent), absent


def test_10_a_rank_without_a_dump_is_named(cases: Mapping[str, Case]) -> None:
    it = cases["a rank without a dump"]
    assert "We cannot decide what's wrong" in it.theirs.text
    assert not it.theirs.accused
    assert it.we_accuse == {3}


# 11. An answer for people and programs.


def test_11_the_culprits_lines_json_and_the_exit_code(cases: Mapping[str, Case]) -> None:
    it = cases["plain"]
    assert it.theirs.missing == {2}
    assert it.theirs.exit_code == 0, "as for a healthy job"
    assert "train.py:33" not in it.theirs.text, "the last line that rank 2 is known to have come to"
    assert "json" not in cases["its help"].theirs.text.lower()
    run = subprocess.run(
        [UNHANG, "diagnose", it.folder, "--format", "json"], capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 1, run.stderr
    first = json.loads(run.stdout)["findings"][0]
    assert first["culprit_ranks"] == [2]
    assert first["location"] == {"file": "/home/me/train.py", "line": 44, "function": "train"}
    assert any("rank 2" in e["source"] and "train.py:33" in e["text"] for e in first["evidence"])


def test_11_the_exit_code_of_a_healthy_job(cases: Mapping[str, Case]) -> None:
    it = cases["healthy"]
    assert it.theirs.accused == set()
    assert it.we_find_nothing()


def python_calls(work: Callable[[], object]) -> int:
    """How many Python functions are called in it: the same on every machine, unlike its time."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_12_the_work_grows_with_the_ranks_not_with_their_square(cases: Mapping[str, Case]) -> None:
    small, middle, large = (cases[f"{world} ranks"] for world in WORLDS)
    assert middle.theirs.peers_listed > 3.5 * small.theirs.peers_listed
    assert large.theirs.peers_listed > 3.5 * middle.theirs.peers_listed
    assert all(it.we_find_nothing() for it in (small, middle, large))
    ours = [python_calls(lambda it=it: it.ours) for it in (small, middle, large)]  # type: ignore[misc]
    assert ours[1] < 2.3 * ours[0]
    assert ours[2] < 2.3 * ours[1]
