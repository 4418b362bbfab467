"""Small jobs drawn at random, with known truth: healthy ones are left alone, and of the others the culprits are named."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import dumpgen
import pytest
from dumpgen import Job

from unhang.diagnosis import judge_paths
from unhang.model import Diagnosis, Finding, Verdict
from unhang.read.dumps import DumpFile, Shard
from unhang.read.dumps.engine import Progress, Task
from unhang.read.dumps.reader import DumpReader

CHUNKS, SEEDS = 20, 100
IN_EVERY_RUN = 1  # chunk; `make bench` draws 50,000 jobs beside the rest of these
UNSURE = 0.5


class InProcess:
    """Reads in this process: the pool of processes is not what is tested here, and costs half of the time."""

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = 64
    ) -> Iterator[Shard]:
        if files:
            yield task(files)


def diagnosed(job: Job) -> Diagnosis:
    """What we say of a job's dumps."""
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder))
        return judge_paths([Path(folder)], partial(DumpReader, use_cache=False, engine=InProcess())).diagnosis


def is_awaited(job: Job, finding: Finding) -> bool:
    """Whether a call that a finding names is one in which somebody waits for the culprits, or where theirs depart.

    Equal calls pair silently, so the departure may show only later in its group, before the call that is awaited.
    """
    if finding.process_group is None or finding.collective is None or "seq" not in finding.collective:
        return True
    calls = {job.truth.departs, *((a.group[0], seq) for a in job.truth.awaited for seq in a.seqs)}
    name, seq = finding.process_group["pg_name"].partition("@")[0], finding.collective["seq"]
    group, departed = job.truth.departs
    until = [a.seq for a in job.truth.awaited if a.group[0] == group]
    return (name, seq) in calls or (name == group and departed <= seq <= max(until, default=departed))


def what_is_wrong(job: Job, said: Diagnosis) -> str:
    """What is wrong with a diagnosis; "" if nothing is."""
    failed = [f"{outcome.rule}: {outcome.reason}" for outcome in said.outcomes if outcome.verdict == Verdict.ERROR]
    if failed:
        return failed[0]
    truth = job.truth.all_culprits
    first = said.findings[0] if said.findings else None
    named = set(first.culprit_ranks) if first else set()
    if not dumpgen.decidable(job):
        seen = truth - job.loss.lost - set(job.loss.truncated)
        is_open = first is not None and first.confidence < UNSURE and bool(seen) and named >= seen
        return "" if named <= dumpgen.suspects(job) or is_open else f"accuses {sorted(named)}"
    if job.truth.kind == dumpgen.HEALTHY:
        named = {rank for f in said.findings for rank in f.culprit_ranks}
    elif first is None:
        return "says nothing"
    elif job.truth.others:
        named = {rank for f in said.findings if f.is_root for rank in f.culprit_ranks}
    elif named == truth and job.truth.awaited and not is_awaited(job, first):
        return f"names another call: {first.process_group} {first.collective}"
    return "" if named == truth else f"names {sorted(named)}"


def wrong_ones(seeds: range) -> list[str]:
    """What is wrong, seed by seed, with a line for each wrong one."""
    wrong = []
    for seed in seeds:
        job = dumpgen.random_job(seed)
        if why := what_is_wrong(job, diagnosed(job)):
            wrong.append(f"seed {seed}: {job.truth.kind}, at fault {sorted(job.truth.all_culprits)}: {why}")
    return wrong


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.whole] * (n >= IN_EVERY_RUN)) for n in range(CHUNKS)]
)
def test_culprits_are_named_and_healthy_jobs_left_alone(number: int) -> None:
    assert wrong_ones(range(number * SEEDS, (number + 1) * SEEDS)) == []


@pytest.mark.parametrize(
    "seed",
    [
        *(350_031, 1_001_025, 1_102_260, 1_205_671, 1_212_856, 1_220_893, 1_221_019, 1_222_126, 1_230_688),
        *(1_230_792, 1_231_049, 1_233_727, 1_234_379, 1_234_810, 1_236_830, 1_247_396, 1_400_536, 1_412_428),
        *(1_417_569, 1_446_188, 1_447_248, 1_509_119, 1_510_425, 1_525_553, 1_601_724, 1_605_460),
        *(1_628_737, 1_630_302, 1_632_531, 4_542, 12_098, 20_569, 41_364, 48_502, 202_760, 204_188, 209_258, 217_128),
    ],
)
def test_draws_that_were_once_judged_wrongly(seed: int) -> None:
    assert wrong_ones(range(seed, seed + 1)) == []


def test_the_draw_knows_healthy_jobs_and_many_faults() -> None:
    kinds = Counter(dumpgen.random_job(seed).truth.kind for seed in range(SEEDS))
    assert kinds[dumpgen.HEALTHY] > SEEDS // 10
    assert len(kinds) > 5
