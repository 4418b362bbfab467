"""Few nodes stand for many: nobody is accused that the whole job would not accuse, and what is told of those that were read is the same."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import dumpgen
import dumpgen.draw
import pytest

from tests.dumps.test_random_jobs import InProcess
from unhang.analyze import alike
from unhang.analyze.situation import Situation
from unhang.model import Case, Diagnosis
from unhang.read import open_paths
from unhang.read.case import smaller
from unhang.read.dumps.reader import DumpReader
from unhang.read.gathered import Alike
from unhang.rules.registry import judge

IN_EVERY_RUN, CHUNKS, SEEDS = 1, 10, 30


def _case(job: dumpgen.Job) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder))
        read = partial(DumpReader, use_cache=False, engine=InProcess())
        return open_paths([Path(folder)], read_dumps=read).whole()


def _accused(said: Diagnosis) -> set[int]:
    return {rank for finding in said.findings for rank in finding.culprit_ranks}


def _compared(seed: int, ranks_of_a_node: int) -> str:
    """How the verdict on a few nodes compares with the one on all."""
    case = _case(dumpgen.random_job(seed))
    world = case.world
    nodes = {f"n{i}": world[i : i + ranks_of_a_node] for i in range(0, len(world), ranks_of_a_node)}
    situation = Situation(case)
    chosen = alike.choose({name: alike.tell(situation, ranks) for name, ranks in nodes.items()})
    read = tuple(sorted(rank for name in chosen.nodes for rank in nodes[name]))
    if len(read) == len(world):
        return "all are read"
    few = judge(smaller(case, Alike(len(world), read, (), chosen.is_whole)))
    whole = judge(situation)
    if not _accused(few) <= _accused(whole):
        return f"seed {seed}: {sorted(_accused(few))} instead of {sorted(_accused(whole))}, read {read}"
    is_less = bool(_accused(whole).intersection(read) - _accused(few))
    return ("less" if is_less else "same") if chosen.is_whole else "in part"


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.whole] * (n >= IN_EVERY_RUN)) for n in range(CHUNKS)]
)
def test_the_few_are_judged_as_all_are(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumpgen.draw, "_WORLDS", (24, 32, 48, 64))
    monkeypatch.setattr(alike, "MOST_NODES", 12)
    seeds = range(number * SEEDS, (number + 1) * SEEDS)
    found = Counter(_compared(seed, 1 + seed % 2) for seed in seeds)
    assert [said for said in found if said.startswith("seed")] == []
    assert found["same"] > 0
    assert found["less"] <= found["same"]
