"""Programs made from real jobs' bundles: each fails at the same group and call as the job, and passes with its fix."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.analyze.situation import Situation
from unhang.read import read_bundle
from unhang.reproduce import Trials, describe, smallest
from unhang.reproduce.program import render
from unhang.reproduce.schedule_cut import NotReproducible, cut
from unhang.rules.registry import judge

MOST_LINES = 60
FAULTS = {
    "conditional_collective": "group default_pg, call 6: rank 0 makes all_reduce where rank 1 makes barrier",
    "two_threads_one_group": "group default_pg, call 6: rank 1 makes all_gather where rank 0 makes all_reduce",
    "two_groups_opposite_order": "rank 3 waits in all_reduce #1 of gradients, rank 0 waits in all_reduce #1 of metrics",
    "uneven_batches": "group default_pg, call 10: rank 3 makes barrier where rank 0 makes all_reduce",
    "p2p_wrong_peer": (
        "rank 2 waits in send to rank 0, rank 0 waits in barrier #6 of default_pg, rank 3 waits in recv from rank 2"
    ),
    "subgroup_not_created_by_all": (
        "rank 0 waits in new_group #2 (ranks 0,1,2,3), rank 3 comes no further than new_group #1 (ranks 0,1,2,3)"
    ),
    "size_mismatch": (
        "group default_pg, call 8: rank 2 makes all_gather of 1 float32 where rank 0 makes all_gather of 2 float32"
    ),
    "event_wait": (
        "rank 3 waits for a lock, an event or a queue, event_wait.py:19 in main, rank 0 waits in all_reduce #8 of default_pg"
    ),
    "sigstop": "rank 1 is stopped, rank 0 waits in all_reduce #9 of default_pg",
    "sigkill": "rank 2 is killed by signal 9, rank 0 waits in all_reduce #9 of default_pg",
    "user_exception": "rank 2 raises ValueError, rank 0 waits in all_reduce #9 of default_pg",
    "rendezvous_incomplete": "rank 3 does not come to init_process_group, rank 0 waits in init_process_group",
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `unhang run` left of jobs of four ranks, each with one fault."""
    folder = tmp_path_factory.mktemp("bundles")
    with tarfile.open(Path(__file__).with_name("test_reproduce_bundles.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    """One process with torch for all programs."""
    with Trials(tmp_path_factory.mktemp("trials")) as running:
        yield running


@pytest.mark.parametrize("fault", FAULTS)
def test_the_program_fails_as_the_job_did_and_passes_with_its_fix(bundles: Path, trials: Trials, fault: str) -> None:
    situation = Situation(read_bundle(bundles / fault))
    schedule = cut(situation, judge(situation))
    _, small = smallest(schedule, trials, 45)
    assert describe(small) == FAULTS[fault]
    text = render(small, describe(small), with_fix=True, quiet_s=0.8)
    assert len(text.splitlines()) <= MOST_LINES
    assert "unhang" not in text.replace("Written by `unhang reproduce`", "")
    code, output = trials.run(text)
    assert (code, output.splitlines()[-1]) == (1, "fails the same way"), output
    assert any(f"rank {rank}: {what}" in output for rank, what in small.expected.items())
    assert trials.run(text, "fixed")[0] == 0


def test_a_program_that_stands_elsewhere_does_not_count(bundles: Path, trials: Trials) -> None:
    situation = Situation(read_bundle(bundles / "conditional_collective"))
    text = render(cut(situation, judge(situation)), "A trial.", quiet_s=0.8)
    assert text.count("all_reduce #6 of default_pg") == 2
    other = text.replace('[("all_reduce #6 of default_pg"', '[("all_reduce #5 of default_pg"')
    other = other.replace('        ("all_reduce #6 of default_pg"', '        ("all_reduce #5 of default_pg"')
    code, output = trials.run(other)
    assert (code, output.splitlines()[-1]) == (2, "fails in another way"), output


def test_a_program_that_fails_by_itself_does_not_count(bundles: Path, trials: Trials) -> None:
    situation = Situation(read_bundle(bundles / "conditional_collective"))
    text = render(cut(situation, judge(situation)), "A trial.", quiet_s=0.8).replace(
        "dist.barrier(", "dist.no_such_call("
    )
    code, output = trials.run(text)
    assert code == 2
    assert "AttributeError" in output


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [("long_equal_pause", "nothing to reproduce: the job did not fail"), ("port_in_use", "the job did not come up")],
)
def test_what_is_not_in_the_calls_is_refused(bundles: Path, bundle: str, reason: str) -> None:
    situation = Situation(read_bundle(bundles / bundle))
    with pytest.raises(NotReproducible, match=reason) as refused:
        cut(situation, judge(situation))
    assert refused.value.exit_code == 3
