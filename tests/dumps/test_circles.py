"""A circle of receives: who is named where the dumps tell no rank from the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.dumps.small_dumps import COMPLETED, SCHEDULED, Call, call, job
from tests.dumps.test_random_jobs import UNSURE, InProcess
from unhang.diagnosis import judge_paths
from unhang.model import Finding
from unhang.read.dumps.reader import DumpReader

_RANKS = range(4)


def turn(rank: int, state: str = SCHEDULED, line: int = 20) -> list[Call]:
    """A receive from the rank before, and a send to the next that waits behind it."""
    before, after = (rank - 1) % len(_RANKS), (rank + 1) % len(_RANKS)
    return [
        call(f"recv {rank}<-{before}", state=state, line=line),
        call(f"send {rank}->{after}", state=state, line=line + 1),
    ]


def found(calls: dict[int, list[Call]], folder: Path, quiet_s: float = 600.0, ring: int = 2000) -> list[Finding]:
    """The findings on dumps of these calls, each after one of all ranks."""
    job({r: [call("all_reduce"), *mine] for r, mine in calls.items()}, quiet_s=quiet_s, ring=ring).write(folder)
    return list(judge_paths([folder], partial(DumpReader, use_cache=False, engine=InProcess())).diagnosis.findings)


def test_where_all_receive_first_at_one_line_the_order_of_all_is_at_fault(tmp_path: Path) -> None:
    (finding,) = found({r: turn(r) for r in _RANKS}, tmp_path)
    assert (finding.rule, finding.culprit_ranks) == ("collective-order-race", tuple(_RANKS))
    assert finding.location is not None
    assert finding.location.line == 20
    assert "none has sent anything" in finding.because


def test_a_ring_that_runs_is_left_alone(tmp_path: Path) -> None:
    assert found({r: turn(r) for r in _RANKS}, tmp_path, quiet_s=0.005) == []


@pytest.mark.parametrize("kind", ["two lines", "has sent", "lost"])
def test_where_one_may_have_left_out_its_send_nobody_is_named_for_sure(kind: str, tmp_path: Path) -> None:
    calls = {r: turn(r) for r in _RANKS}
    if kind == "two lines":
        calls = {r: turn(r, line=20 + 10 * (r % 2)) for r in _RANKS}
    elif kind == "has sent":
        calls = {r: [*turn(r, COMPLETED), *turn(r)] for r in _RANKS}
    findings = found(calls, tmp_path, ring=2 if kind == "lost" else 2000)
    assert all(f.confidence < UNSURE for f in findings)
    assert [f.rule for f in findings] == ["collective-order-race"]
