from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unhang.errors import UnreadableInput
from unhang.model import CallState, CollectiveTable, Finding, Frame, ProcessGroup, TableBuilder
from unhang.show.perfetto import write_trace
from unhang.show.slices import digits, gzip_packer

MS = 1_000_000
ZERO = 1_790_000_000_000_000_000
HOSTILE = '"},{"ph":"X"}]\\</script>\x00\x1b[31m\u202e\ud800 <b>'

Event = dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def traced(folder: Path, *tables: CollectiveTable, **more: Any) -> list[Event]:
    write_trace(tables, folder / "trace.json.gz", **more)
    events: list[Event] = load(folder / "trace.json.gz")["traceEvents"]
    return events


def slices(events: list[Event]) -> list[Event]:
    return [e for e in events if e["ph"] == "X"]


def track_names(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def small(ranks: tuple[int, ...] = (0, 1), stuck: bool = True) -> CollectiveTable:
    """Three all_reduce and, unless all went well, an all_gather that nobody completed."""
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0, 1), backend="nccl"))
    frames = (Frame("/venv/site-packages/torch/distributed/c10d.py", 9, "all_reduce"), Frame("/a/train.py", 7, "step"))
    for rank in ranks:
        for seq in (1, 2, 3):
            table.add(
                rank=rank, group=group, seq=seq, op="nccl:all_reduce", in_sizes=((4, 8),), out_sizes=((4, 8),),
                dtype="Float", created_ns=ZERO + seq * 10 * MS + rank, completed_ns=ZERO + seq * 10 * MS + 5 * MS,
                timeout_ms=600_000, frames=frames, record_id=seq,
            )  # fmt: skip
        if stuck:
            table.add(
                rank=rank, group=group, seq=4, op="nccl:all_gather", in_sizes=((3,),), out_sizes=((6,),), dtype="Int",
                state=CallState.STARTED, created_ns=ZERO + 40 * MS, record_id=4,
            )  # fmt: skip
    return table.build()


def test_a_call_comes_back(tmp_path: Path) -> None:
    events = traced(tmp_path, small())
    first = next(e for e in slices(events) if e["pid"] == 1)
    assert (first["name"], first["ts"], first["dur"]) == ("all_reduce", 0, 5000)
    assert first["args"] == {"sizes": "4x8 Float", "at": "/a/train.py:7 in step", "seq": 1, "queued_us": 0}
    assert {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"} == {
        (0, "rank 0"),
        (1, "rank 1"),
    }
    assert set(track_names(events).values()) == {"default_pg (0)"}
    assert load(tmp_path / "trace.json.gz")["displayTimeUnit"] == "ms"


def test_open_calls_reach_to_the_end_and_are_joined(tmp_path: Path) -> None:
    events = traced(tmp_path, small((0,)), small((1,)))
    ends = [e["ts"] + e["dur"] for e in slices(events)]
    waiting = [e for e in slices(events) if e["name"] == "all_gather (not completed)"]
    assert [e["pid"] for e in waiting] == [0, 1]
    assert {e["ts"] + e["dur"] for e in waiting} == {max(ends)}
    assert (waiting[0]["args"]["op"], waiting[0]["args"]["state"]) == ("nccl:all_gather", "started")
    arrows = [e for e in events if e["ph"] in "stf"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in arrows] == [("s", 0, 30_000), ("f", 1, 30_000)]
    assert {e["tid"] for e in arrows} == {e["tid"] for e in waiting}


def test_a_healthy_job_has_no_arrows(tmp_path: Path) -> None:
    events = traced(tmp_path, small(stuck=False))
    assert {e["ph"] for e in events} == {"M", "X"}


def test_culprits_are_marked_at_their_last_event(tmp_path: Path) -> None:
    found = Finding("r", "rank-frozen", "rank 1 is stopped", 0.9, (1, 5), "state T", process_group={"pg_name": "0"})
    marks = [e for e in traced(tmp_path, small(stuck=False), findings=[found]) if e["ph"] == "i"]
    assert [e["name"] for e in marks] == ["culprit: rank 1 is stopped"] * 2
    assert [(e["pid"], e["ts"]) for e in marks] == [(1, 25_000), (5, 25_000)]


def test_sends_and_receives_have_tracks_of_their_own(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("7", "PIPE", (0, 1)))
    for seq, op in enumerate(("nccl:send 0->1", "nccl:recv 0<-1"), 1):
        table.add(
            rank=0, group=group, seq=seq, op=op, is_p2p=True, peer=1, created_ns=ZERO + seq * MS,
            completed_ns=ZERO + 9 * MS, record_id=seq,
        )  # fmt: skip
    events = traced(tmp_path, table.build())
    names = track_names(events)
    assert [names[e["pid"], e["tid"]] for e in slices(events)] == ["PIPE (7) send", "PIPE (7) recv"]
    assert {e["args"]["peer"] for e in slices(events)} == {1}


def test_completion_that_was_not_recorded_is_no_long_wait(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0,), backend="gloo"))
    for seq, at in enumerate((0, 10, 20, 30, 5000), 1):
        table.add(rank=0, group=group, seq=seq, op="gloo:barrier", created_ns=ZERO + at * MS, record_id=seq)
    found = slices(traced(tmp_path, table.build()))
    assert [e["dur"] for e in found] == [10_000, 10_000, 10_000, 40_000, 40_000]
    assert {e["args"]["completed"] for e in found} == {"when is not recorded"}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup(HOSTILE, HOSTILE, (0,)))
    frames = (Frame(f"/{HOSTILE}.py", 1, HOSTILE),)
    table.add(
        rank=0, group=group, seq=1, op=HOSTILE, dtype=HOSTILE, created_ns=ZERO, completed_ns=ZERO + 1, frames=frames
    )
    found = Finding("r", "rank-frozen", HOSTILE, 0.9, (0,), HOSTILE)
    events = traced(tmp_path, table.build(), findings=[found])
    assert len(slices(events)) == 1
    assert slices(events)[0]["args"]["sizes"] == '"},{"ph":"X"}]\\</script>\\x00\\x1b[31m\\u202e\\ud800 <b>'


def test_an_empty_table_is_a_valid_trace(tmp_path: Path) -> None:
    assert traced(tmp_path, CollectiveTable.empty()) == []
    assert traced(tmp_path) == []


def test_calls_without_a_time_are_counted(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0,)))
    table.add(rank=0, group=group, seq=1, op="barrier")
    table.add(rank=0, group=group, seq=2, op="barrier", created_ns=ZERO, completed_ns=ZERO + 5, record_id=1)
    assert [e["args"]["seq"] for e in slices(traced(tmp_path, table.build()))] == [2]
    assert load(tmp_path / "trace.json.gz")["otherData"]["calls_without_time"] == 1


def test_a_later_table_may_begin_earlier(tmp_path: Path) -> None:
    early = small((1,))
    early = CollectiveTable(
        {**early.columns, "created_ns": early["created_ns"] - 3_600_000 * MS}, groups=early.groups, ops=early.ops,
        sizes=early.sizes, dtypes=early.dtypes, stacks=early.stacks, threads=early.threads,
    )  # fmt: skip
    write_trace(iter([small((0,)), early]), tmp_path / "t.json.gz")
    starts = {e["pid"]: e["ts"] for e in slices(load(tmp_path / "t.json.gz")["traceEvents"])[::-1]}
    assert starts[0] - starts[1] == pytest.approx(3_600_000_000, abs=0.01)
    assert min(starts.values()) > 0
    assert min(e["ts"] for e in slices(traced(tmp_path, small((0,)), early))) == 0


def test_an_error_of_a_later_table_leaves_a_valid_trace(tmp_path: Path) -> None:
    def tables() -> Iterator[CollectiveTable]:
        yield small((0,))
        raise UnreadableInput("ranks 1-3 could not be read")

    path = tmp_path / "trace.json.gz"
    with pytest.raises(UnreadableInput, match="ranks 1-3"):
        write_trace(tables(), path)
    assert {e["pid"] for e in slices(load(path)["traceEvents"])} == {0}
    assert load(path)["otherData"]["incomplete"] == "ranks 1-3 could not be read"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json.gz"]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def tables() -> Iterator[CollectiveTable]:
        yield small((0,))
        raise KeyboardInterrupt

    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        write_trace(tables(), path)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json.gz"]
    with pytest.raises(OSError, match="No such file"):
        write_trace([small()], tmp_path / "none" / "trace.json.gz")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([2, 30, 4000]))
def test_slices_of_a_track_follow_or_enclose_each_other(
    tmp_path_factory: pytest.TempPathFactory, seed: int, calls: int, longest: int
) -> None:
    noise = np.random.default_rng(seed)
    table = TableBuilder()
    groups = [table.group(ProcessGroup(str(i), "", (0, 1))) for i in range(2)]
    at = ZERO
    for i in range(calls):
        at += int(noise.integers(0, 40))
        took = int(noise.integers(0, longest))
        state = CallState.STARTED if noise.random() < 0.1 else CallState.COMPLETED
        started = at + int(noise.integers(0, 5)) if noise.random() < 0.3 else 0
        table.add(
            rank=int(noise.integers(2)), group=groups[int(noise.integers(2))], seq=i, op="all_reduce", state=state,
            created_ns=at, started_ns=started, completed_ns=0 if state is CallState.STARTED else at + took, record_id=i,
        )  # fmt: skip
    path = tmp_path_factory.mktemp("t") / "t.json.gz"
    write_trace([table.build()], path)
    found = slices(load(path)["traceEvents"])
    assert sorted(e["args"]["seq"] for e in found) == list(range(calls))
    tracks = defaultdict(list)
    for e in found:
        begin = round(e["ts"] * 1000)
        tracks[e["pid"], e["tid"]].append((begin, -begin - round(e["dur"] * 1000)))
    for spans in tracks.values():
        ends: list[int] = []
        for begin, minus_end in sorted(spans):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or -minus_end <= ends[-1]
            ends.append(-minus_end)


def test_calls_in_flight_at_once_lie_beside_each_other(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0,)))
    for seq in range(6):
        table.add(
            rank=0, group=group, seq=seq, op="all_reduce", created_ns=ZERO + seq * MS,
            completed_ns=ZERO + (seq + 2) * MS - 1, record_id=seq,
        )  # fmt: skip
    events = traced(tmp_path, table.build())
    assert {e["args"]["queued_us"] for e in slices(events)} == {0}
    names = track_names(events)
    in_time = sorted(slices(events), key=lambda e: int(e["ts"]))
    assert [names[0, e["tid"]] for e in in_time] == ["default_pg (0)", "default_pg (0) lane 2"] * 3


def test_digits() -> None:
    numbers = np.array([0, 7, 40, 9_999, 10_000, 20_305, 300_000_001])
    kinds = np.array([0, 1, 0, 0, 0, 0, 1])
    alike = np.full(len(numbers), 4_000_000_007)
    fields = [(b'"a":', numbers), (b',"b":', numbers % 10_000), (b',"c":', alike)]
    (rows,) = digits([b"{", b'{"d":1,'], kinds, fields, b"}")
    shown = [bytes(row).decode() for row in rows]
    assert shown[:2] == [
        '{      "a":           0,"b":   0,"c":  4000000007}',
        '{"d":1,"a":           7,"b":   7,"c":  4000000007}',
    ]
    for text, number, kind in zip(shown, numbers.tolist(), kinds.tolist(), strict=True):
        about = {"a": number, "b": number % 10_000, "c": 4_000_000_007}
        assert json.loads(text) == (about | {"d": 1} if kind else about)


@pytest.mark.parametrize("library", ["isal", "zlib"])
def test_packed_by_either_library(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "isal":
        pytest.importorskip("isal.isal_zlib")
    else:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert ("isal" in type(gzip_packer()).__module__) == (library == "isal")
    assert len(slices(traced(tmp_path, small()))) == 8
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert (unpacker.eof, unpacker.unused_data) == (True, b"")  # one gzip member
    assert json.loads(text)["traceEvents"]


def test_many_slices_keep_their_own_numbers(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0,)))
    count = 9_000  # several pieces of text
    for seq in range(count):
        op = ("all_reduce", "broadcast", "all_gather")[seq % 3]
        created = ZERO + seq * 20 * MS
        table.add(
            rank=0, group=group, seq=seq, op=op, created_ns=created, started_ns=created + seq * 1000,
            completed_ns=created + seq * 1000 + MS, record_id=seq,
        )  # fmt: skip
    found = sorted(slices(traced(tmp_path, table.build())), key=lambda e: e["args"]["seq"])
    assert [e["args"]["seq"] for e in found] == list(range(count))
    assert [e["args"]["queued_us"] for e in found] == list(range(count))
    assert [e["ts"] for e in found] == [seq * 20_000 + seq for seq in range(count)]
    assert {e["dur"] for e in found} == {1000}
    assert [e["name"] for e in found[:4]] == ["all_reduce", "broadcast", "all_gather", "all_reduce"]


def test_senseless_times_are_drawn(tmp_path: Path) -> None:
    table = TableBuilder()
    group = table.group(ProcessGroup("0", "default_pg", (0, 1)))
    for rank in range(4):
        for seq, created in enumerate((1, 1 << 62)):
            table.add(
                rank=rank, group=group, seq=seq, op="all_reduce", created_ns=created, completed_ns=created + MS, record_id=seq,
            )  # fmt: skip
    found = slices(traced(tmp_path, table.build()))
    assert sorted((e["pid"], e["ts"]) for e in found) == [
        (rank, ts) for rank in range(4) for ts in (0, ((1 << 62) - 1) // 1000)
    ]
