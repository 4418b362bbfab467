"""What real jobs on NCCL left (one H200, torch 2.11, NCCL 2.28.9, three ranks on the device), judged again without a device.

`plain`: dumps, logs, stacks and RAS, as users have them. `run`: what `unhang run` left. `attach`: what was seen from outside.
"""

from __future__ import annotations

import json
import linecache
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.blind_jobs import score_of
from benchmarks.gpu_evidence.faults import BY_NAME
from benchmarks.gpu_evidence.judge import ABSTAINS, DID_NOT_HAPPEN, RIGHT, WRONG, verdict
from benchmarks.hangbench.score import FALSE_ACCUSATION, HIT, said_in

from unhang.diagnosis import judge_paths
from unhang.show import render

ARCHIVE = Path(__file__).with_name("h200.tar.xz")
UNSEEN = Path(__file__).with_name(
    "h200_blind.tar.xz"
)  # 24 programs that nobody here had seen, before any of them was mended for
RANKS = 3
# Where the programs lay, which are read from memory.
PLACES = {"plain": "/tmp/gpu-0", "watched": "/tmp/gpu-1"}
PROGRAM = "benchmarks/gpu_evidence/job.py"


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unseen")
    with tarfile.open(UNSEEN) as archive:
        archive.extractall(folder, filter="data")
    for job in folder.iterdir():
        place = (job / "place").read_text().strip()
        for file in (job / "program").glob("*.py"):
            text, name = file.read_text(), f"{place}/{file.name}"
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for kind, place in PLACES.items():
        text = (folder / "programs" / kind / "job.py").read_text()
        linecache.cache[f"{place}/{PROGRAM}"] = (len(text), None, text.splitlines(True), f"{place}/{PROGRAM}")
    return folder


def judged(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(render(judge_paths([folder]), "json"))
    return report


def test_what_users_have(sets: Path) -> None:
    found, wrong = Counter[str](), {}
    for job in sorted((sets / "plain").iterdir()):
        if not json.loads((job / "outcome.json").read_text())["happened"]:
            found[DID_NOT_HAPPEN] += 1
            continue
        report = judged(job / "evidence")
        result = verdict(json.loads((job / "truth.json").read_text()), report)
        found[result] += 1
        if result == WRONG:
            wrong[job.name] = report["findings"][:1]
    assert not wrong
    assert found[RIGHT] >= 12, found
    assert found[DID_NOT_HAPPEN] == 4  # NCCL let calls pass that did not fit


@pytest.mark.parametrize(("way", "right"), [("run", 26), ("attach", 9)])
def test_what_was_watched(way: str, right: int, sets: Path) -> None:
    results, wrong = Counter[str](), {}
    for job in sorted((sets / way).iterdir()):
        report = judged(job / "bundle")
        result = verdict(BY_NAME[job.name].truth(RANKS), report)
        results[result] += 1
        if result == WRONG:
            wrong[job.name] = report["findings"][:1]
    assert not wrong
    assert results[RIGHT] >= right, results
    assert results[ABSTAINS] <= len(list((sets / way).iterdir())) - right


def test_calls_that_nccl_let_pass_are_told(sets: Path) -> None:
    for name in ("size-mismatch", "dtype-mismatch", "other-order", "ddp-validation-on-rank0"):
        report = judged(sets / "run" / name / "bundle")
        assert (report["outcome"], report["verdict"], report["findings"][0]["rule"]) == (
            "clean",
            "wrong",
            "passed-unnoticed",
        )


def test_healthy_jobs_are_clean(sets: Path) -> None:
    names = [name for name, fault in BY_NAME.items() if fault.is_healthy]
    assert len(names) == 4
    assert {judged(sets / "run" / name / "bundle")["verdict"] for name in names} == {"clean"}


def test_programs_that_nobody_had_seen(unseen: Path) -> None:
    """Run under `unhang run` they scored 7 of 18, and all 6 healthy ones clean. What is strictly right now stays so."""
    results = {}
    for job in sorted(unseen.iterdir()):
        given = json.loads((job / "program" / "truth.json").read_text())
        report = judged(job / "bundle")
        results[job.name] = score_of(given, said_in(report), report["job"]["exit_code"], RANKS).result
    assert FALSE_ACCUSATION not in results.values(), results
    assert Counter(results.values())[HIT] >= 19, results


def test_batches_of_sends_and_receives_are_no_collectives(unseen: Path) -> None:
    """NCCL numbers the entry that tracks such a batch like the collective before it."""
    found = judged(unseen / "423_pipeline_gpipe" / "bundle")["findings"][0]
    assert found["culprit_ranks"] == [0], found
    assert "3 sends to rank 1 in a row" in found["title"], found


@pytest.mark.parametrize(
    ("job", "rank", "waits"),
    [
        ("430_implicit_act", 1, "waited at main (train.py:34) for its device"),
        ("425_gan_balance", 2, "for each other in collectives"),
    ],
)
def test_a_host_that_has_given_up_the_gil_waits_for_its_device(
    unseen: Path, tmp_path: Path, job: str, rank: int, waits: str
) -> None:
    """One that holds it computes, and nothing is said of its device."""
    assert waits in judged(unseen / job / "bundle")["findings"][0]["title"]
    bundle = shutil.copytree(unseen / job / "bundle", tmp_path / "bundle")
    stacks = next(bundle.glob(f"ranks/r{rank}-*/pyspy.json"))
    threads = json.loads(stacks.read_text())
    for thread in threads:
        thread["owns_gil"] = thread["thread_name"] == "MainThread"
    stacks.write_text(json.dumps(threads))
    found = judged(bundle)["findings"][0]
    assert f"rank {rank} ran in a loop without an end in sight" in found["title"], found
    assert found["location"], found  # of the main thread, not of the autograd engine's, which made the calls


def test_an_error_of_nccl_after_an_exception_is_no_hang(unseen: Path) -> None:
    """The watchdog then writes the lines that it writes at a timeout."""
    for name in ("408_latency_quantiles", "428_vocab_merge"):
        report = judged(unseen / name / "bundle")
        assert (report["outcome"], report["findings"][0]["culprit_ranks"]) == ("crash", [2])


def test_ranks_are_not_told_to_agree_where_only_one_of_them_comes(unseen: Path) -> None:
    found = judged(unseen / "406_rebalance_store" / "bundle")["findings"][0]
    assert "all_reduce" not in json.dumps(found["fixes"]), found
