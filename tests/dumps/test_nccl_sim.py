"""Jobs simulated from hosts, streams, devices and watchdogs: no innocent rank is named, however they are recorded and dumped."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ncclsim
import pytest
from nccl_jobs import ABSTAINS, RIGHT, UNSURE, WRONG, score
from ncclsim import Job, Recording, Scene, Style, Truth
from ncclsim.faults import FAULTS, NoPlace

from tests.dumps.test_random_jobs import InProcess
from unhang.diagnosis import judge_paths
from unhang.model import Diagnosis
from unhang.read.dumps.reader import DumpReader

CHUNKS, SEEDS = 40, 25
IN_EVERY_RUN = 1  # chunk; `benchmarks/nccl_jobs.py` draws more
STYLE = Style(2, 2, 4, compute_ns=3_000_000, run_ahead=20)
CLEAR = ("host_in_user_code", "host_holds_gil", "rank0_work", "device_wedged")


def said_of(job: Job, folder: Path, without: tuple[int, ...] = ()) -> Diagnosis:
    job.write(folder, without)
    return judge_paths([folder], lambda paths, *m: DumpReader(paths, *m, use_cache=False, engine=InProcess())).diagnosis


def named(said: Diagnosis) -> set[int]:
    """The ranks that the first finding names, if it is sure."""
    return {r for f in said.findings[:1] if f.confidence >= UNSURE for r in f.culprit_ranks}


def drawn(fault: str, seed: int, style: Style = STYLE, **recording: object) -> Job:
    for attempt in range(30):
        try:
            return ncclsim.job_of(style, Recording(**recording), FAULTS[fault], random.Random(seed * 100 + attempt))  # type: ignore[arg-type]
        except NoPlace:
            continue
    raise AssertionError(fault)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.whole] * (n >= IN_EVERY_RUN)) for n in range(CHUNKS)]
)
def test_no_innocent_rank_is_named_and_most_culprits_are(number: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(number * SEEDS, (number + 1) * SEEDS):
        job = ncclsim.random_job(seed)
        found, why = score(job.truth, said_of(job, tmp_path / str(seed)))
        assert found != WRONG, f"seed {seed}: {job.truth}: {why}"
        counts[found] += job.truth.tells
    assert counts[RIGHT] >= 0.75 * (counts[RIGHT] + counts[ABSTAINS])


@pytest.mark.parametrize("seed", [2, 8, 42, 111, 141, 149, 250, 729, 750, 1524, 1774, 2128, 20005])
def test_draws_that_were_once_judged_wrongly(seed: int, tmp_path: Path) -> None:
    job = ncclsim.random_job(seed)
    found, why = score(job.truth, said_of(job, tmp_path))
    assert found != WRONG, why


@pytest.mark.parametrize("fault", CLEAR)
def test_a_clear_fault_is_named_however_it_is_recorded(fault: str, tmp_path: Path) -> None:
    job = drawn(fault, 1)
    truth = set(job.truth.culprits)
    ways = {
        "pickle": {},
        "json": {"as_json": True},
        "open calls alone": {"only_open": True},
        "open calls as json": {"only_open": True, "as_json": True},
        "no stacks": {"has_frames": False},
        "after a long past": {"past": 1200, "ring": 40},
        "torch 2.4": {"torch": "2.4"},
    }
    for name, way in ways.items():
        assert named(said_of(replace(job, recording=Recording(**way)), tmp_path / name)) == truth, name  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", CLEAR)
def test_a_clock_that_is_off_changes_nothing(fault: str, tmp_path: Path) -> None:
    job = drawn(fault, 2)
    for ahead_ms in (-40, 40):
        clocks = dict.fromkeys(range(8), ahead_ms * 1_000_000)
        assert named(said_of(replace(job, clocks_ns=clocks), tmp_path / str(ahead_ms))) == set(job.truth.culprits)


@pytest.mark.parametrize("fault", CLEAR)
def test_hosts_may_be_ahead_of_their_devices_by_any_number_of_calls(fault: str, tmp_path: Path) -> None:
    job = drawn(fault, 3, replace(STYLE, run_ahead=5, run_ahead_spread=20))
    assert named(said_of(job, tmp_path)) == set(job.truth.culprits)


# With the completed calls there is more to go by: two of the faults stand for all.
@pytest.mark.parametrize(
    ("fault", "only_open"),
    [
        pytest.param(
            fault,
            only_open,
            marks=[pytest.mark.whole] * (not only_open and fault not in ("host_holds_gil", "size_mismatch")),
        )
        for fault in (*CLEAR, "symmetric_wedge", "size_mismatch")
        for only_open in (False, True)
    ],
)
def test_without_any_one_dump_no_innocent_rank_is_named(fault: str, only_open: bool, tmp_path: Path) -> None:
    job = drawn(fault, 4, only_open=only_open)
    for lost in range(job.scene.world):
        assert named(said_of(job, tmp_path / str(lost), (lost,))) <= set(job.truth.culprits), lost


def test_a_dump_without_stacks_among_others_that_have_them_tells_of_the_gil(tmp_path: Path) -> None:
    for fault, is_said in (("host_holds_gil", True), ("host_in_user_code", False)):
        (finding,) = said_of(drawn(fault, 7), tmp_path / fault).findings
        assert ("need the GIL" in finding.because) is is_said


def stopped(rank: int) -> Callable[[Scene], None]:
    """A host stops before its second iteration."""

    def fault(scene: Scene) -> None:
        scene.trouble.host_stops[rank] = scene.begins[rank][1] + 1
        scene.truth = Truth("host", (rank,))

    return fault


@pytest.mark.parametrize("only_open", [False, True])
def test_the_root_moves_with_the_fault(only_open: bool, tmp_path: Path) -> None:
    for rank in range(STYLE.world):
        job = ncclsim.job_of(STYLE, Recording(only_open=only_open), stopped(rank), random.Random(5))
        assert named(said_of(job, tmp_path / str(rank))) == {rank}


def test_two_snapshots_of_a_job_that_runs_say_nothing(tmp_path: Path) -> None:
    for seed in range(2):
        assert said_of(drawn("healthy", 6 + seed), tmp_path / str(seed)).findings == ()


def test_the_same_seed_is_the_same_job(tmp_path: Path) -> None:
    one, two = (ncclsim.random_job(77) for _ in range(2))
    assert [one.dump(r).encoded() for r in one.with_dump] == [two.dump(r).encoded() for r in two.with_dump]
