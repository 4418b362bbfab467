"""What is noted of a collective beside its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from unhang.inside.recorder import recording
from unhang.inside.recorder.flight import reductions
from unhang.inside.recorder.recording import Recording

GROUP = SimpleNamespace(group_name="7")


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    reductions.forget_in_child()
    yield
    reductions.forget_in_child()


def options(kind: str, **values: object) -> object:
    made = getattr(dist.distributed_c10d, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_operation_and_root_are_noted_with_the_time_of_the_call(tmp_path: Path) -> None:
    for given in (
        options("AllreduceOptions", reduceOp=dist.ReduceOp.MAX),
        options("BroadcastOptions", rootRank=2),
        options("ReduceOptions", reduceOp=dist.ReduceOp.SUM, rootRank=1),
    ):
        reductions.end(reductions.begin(GROUP, ([], given), {}))
    assert reductions.begin(GROUP, ([],), {"opts": options("ReduceScatterOptions", reduceOp=dist.ReduceOp.AVG)})
    rec = Recording(str(tmp_path), recording.Page(str(tmp_path / "page.bin")), {})
    reductions.write(rec)
    rows = json.loads((tmp_path / "reductions.json").read_text())
    assert [row[2:5] for row in rows] == [["7", 4, -1], ["7", -1, 2], ["7", 0, 1], ["7", 1, -1]]
    assert all(0 < begin <= end for begin, end, *_ in rows[:3])
    assert rows[3][1] == 0  # it is still being made


@pytest.mark.parametrize("given", [(), [1], None, "opts", dist.ReduceOp.SUM])
def test_a_call_without_options_is_none_of_them(given: object) -> None:
    row = reductions.begin(GROUP, ([], given), {})
    assert row is None
    reductions.end(row)


def test_since_when_somebody_waits_for_what_a_call_gave() -> None:
    rows = [reductions.begin(GROUP, ([], options("AllreduceOptions")), {}) for _ in range(3)]
    works = [object() for _ in rows]
    for row, work in zip(rows, works, strict=True):
        reductions.follow(row, work)
    reductions.waits(id(works[1]))
    since = rows[1] and rows[1][5]
    reductions.waits(id(works[1]))  # once more: the first time counts
    reductions.forget(id(works[2]))
    reductions.waits(id(works[2]))
    assert [row and row[5] for row in rows] == [0, since, 0]
    assert since


def test_works_that_nobody_waits_for_are_not_kept_for_ever() -> None:
    row = reductions.begin(GROUP, ([], options("AllreduceOptions")), {})
    works = [object() for _ in range(10_000)]
    for work in works:
        reductions.follow(row, work)
    assert len(reductions._of_works) <= 4096
    reductions.follow(None, works[0])
    reductions.follow(row, None)
