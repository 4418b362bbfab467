"""Dumps of ranks that make the same calls, which are decoded together, give what each gives alone through objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_dumps import dump, entry
from slow_shards import resolved
from test_decode import assert_same, memo_variants
from torch_pickles import FRAMES, regular_dumps, torch_pickled

from unhang.read.dumps import DumpFile, merge
from unhang.read.dumps.decode import decode_shard

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

import dumpgen

FUZZED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
BEGAN_NS = 1_795_000_000_000_000_000


def calls(rank: int = 0, count: int = 12, group: str = "1", **fields: Any) -> list[dict[str, Any]]:
    """Calls of a rank, in two groups, at times of its own."""
    made = []
    for i in range(count):
        began = BEGAN_NS + 1000 * i + rank
        names = {"process_group": (group, "pair"), "pg_id": 3} if i % 3 == 1 else {}
        more = {"frames": FRAMES[i % 4 : i % 4 + 2], "thread_name": "main", "thread_id": str(70_000 + rank)}
        made.append(entry(i, time_created_ns=began, time_discovered_completed_ns=began + 7, **more, **names))
        made[-1] |= fields
    return made


def written(made: Sequence[Sequence[dict[str, Any]]]) -> list[bytes]:
    return [torch_pickled(dump(list(entries))) for entries in made]


def test_times_threads_and_groups_may_differ() -> None:
    groups = ["1", "2", "3", "123", "", "2", "zwölf"]
    shard = assert_same(written([calls(rank, group=group) for rank, group in enumerate(groups)]), frames=True)
    assert len(shard.table.threads) == len(groups)
    assert {g.name for g in shard.table.groups} >= {*groups} - {""}


def test_all_else_may_differ() -> None:
    changes: list[dict[str, Any]] = [
        {"state": "scheduled"}, {"record_id": 20}, {"collective_seq_id": 9}, {"input_sizes": [[9]]}, {"retired": False},
        {"profiling_name": "nccl:broadcast"}, {"frames": FRAMES[5:7]}, {"timeout_ms": 9}, {"input_dtypes": ["Half"]},
        {"time_discovered_completed_ns": None}, {"time_created_ns": 70_000}, {"pg_id": 8}, {"process_group": ("1", "p")},
        {"time_created_ns": -5 - (1 << 40)},
    ]  # fmt: skip
    made = [calls(rank) for rank in range(len(changes) + 2)]
    for entries, change in zip(made[2:], changes, strict=True):
        entries[-1] |= change
    assert_same(written(made), frames=True)


def test_names_that_columns_do_not_hold_are_read_the_slow_way() -> None:
    made = [calls(rank) for rank in range(6)]
    made[4] = calls(4, group="g" * 1001)
    shard = assert_same(written(made), frames=True)
    assert len(shard.dumps) == 6


@pytest.mark.parametrize("field", ["state", "profiling_name", "input_dtypes", "name", "filename"])
def test_a_text_that_says_more_than_a_name(field: str) -> None:
    texts = {"state": ("completed", "scheduled"), "profiling_name": ("nccl:all_reduce", "nccl:broadcast")}
    one, other = texts.get(field, ("Half", "Long"))
    made = []
    for rank in range(6):
        text = one if rank < 3 else other
        frame = {"name": "step", "filename": "train.py", "line": 7}
        value: Any = [text] if field == "input_dtypes" else text
        changed = {"frames": [{**frame, field: text}]} if field in frame else {"frames": [frame], field: value}
        made.append([made_call | changed | {"thread_name": text} for made_call in calls(rank, count=4)])
        made[-1][0]["frames"] = [frame]  # so that the first to have the text is the thread
    assert_same(written(made), frames=True)


def test_stacks_are_given_where_they_are_asked_for() -> None:
    datas = written([calls(rank) for rank in range(6)])
    for frames in (False, True, False):
        assert_same(datas, frames=frames)


@FUZZED
@given(regular_dumps(), st.data())
def test_random_dumps(made: dict[str, Any], data: st.DataObject) -> None:
    names = st.sampled_from(["7", "8", "tp", "one more", "main", "é"])
    changed = []
    for _ in range(5):
        new = {old: data.draw(names) for old in ("7", "tp", "main")}
        entries = [dict(one) for one in made["entries"]]
        for one in entries:
            group, desc = one["process_group"]
            one["process_group"] = (new.get(group, group), desc)
            one["thread_name"] = new.get(one.get("thread_name"), "other")
            for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
                if (one[key] or 0) > 1 << 32:
                    one[key] = BEGAN_NS + data.draw(st.integers(0, 1 << 40))
        changed.append(torch_pickled({**made, "entries": entries}))
    assert_same(changed, frames=data.draw(st.booleans()), last=data.draw(st.sampled_from([None, None, 3])))


def test_a_memo_used_otherwise() -> None:
    made = calls(count=5)
    made[3] |= {"frames": FRAMES[9:11], "state": "started", "input_dtypes": ["Float", "Half"]}
    data = torch_pickled(dump(made))
    variants = list(memo_variants(data))[::3]
    assert len(variants) > 500
    assert_same([data, data, *variants], frames=True)


def test_simulated_jobs(tmp_path: Path) -> None:
    for seed in range(12):
        folder = tmp_path / str(seed)
        dumpgen.random_job(seed).write(folder)
        paths = sorted(folder.glob("*_rank_*"), key=lambda path: int(path.name.rsplit("_", 1)[1]))
        files = [DumpFile(rank, str(path)) for rank, path in enumerate(paths)]
        together = decode_shard(files, frames=True)
        alone = merge([decode_shard([file], frames=True) for file in files])
        assert resolved(together.table) == resolved(alone.table)
        assert (together.dumps, together.absent) == (alone.dumps, alone.absent)
