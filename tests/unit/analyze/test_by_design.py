"""Rank 0 may be late because the program gives it work of its own between two calls: no straggler."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.calls.positions import CallIndex
from unhang.analyze.stragglers import own_work, stragglers
from unhang.model import CallState, Case, Frame, Job, ProcessGroup, TableBuilder

MS = 1_000_000
WORK = """def save(model):
    if rank != 0:
        return
    torch.save(model, path)

def main():
    for step in range(steps):
        loss.backward()
        WORK
        dist.barrier()
"""


def straggling(path: Path, work: str, who: int = 0) -> tuple[Case, bool, Frame | None]:
    """Twenty rounds of a backward pass and a barrier, to which one rank comes 400 ms late; whether it is a straggler, and its own work."""
    source = path / "train.py"
    source.write_text(WORK.replace("WORK", work))
    last = 10 + work.count("\n")
    builder = TableBuilder()
    group = builder.group(ProcessGroup("0", "default_pg", (0, 1, 2), backend="gloo"))
    for rank in range(3):
        for i in range(40):
            is_late = i % 2 and rank == who
            now = 10**18 + (i // 2) * 500 * MS + (i % 2) * 5 * MS + is_late * 400 * MS
            line, op = ((8, "all_reduce"), (last, "barrier"))[i % 2]
            builder.add(
                rank=rank, group=group, seq=i + 1, op=op, state=CallState.COMPLETED, created_ns=now, record_id=i,
                frames=(Frame(str(source), line, "main"),),
            )  # fmt: skip
    table = builder.build()
    case = Case(Job(3, backend="gloo"), {}, table.groups, table)
    found = stragglers(case, CallIndex(table))
    return case, bool(found), own_work(case, found[0]) if found else None


@pytest.mark.parametrize("work", ["if rank == 0:\n            sample(model)", "save(model)"])
def test_work_of_rank_0_by_a_condition_is_the_programs_own(tmp_path: Path, work: str) -> None:
    _, is_late, line = straggling(tmp_path, work)
    assert is_late
    assert line is not None
    assert line.line in (9, 10)


@pytest.mark.parametrize(
    ("work", "who"),
    [
        ("sample(model)", 0),  # every rank does it
        ("if rank == 0:\n            print(loss)", 0),  # a line of output takes no time
        ("if rank == 0:\n            sample(model)", 2),  # another rank is late
    ],
)
def test_else_it_is_a_straggler(tmp_path: Path, work: str, who: int) -> None:
    _, is_late, line = straggling(tmp_path, work, who)
    assert is_late
    assert line is None
