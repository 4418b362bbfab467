"""Decoding columns gives what decoding objects gives, for every dump; it only costs less."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_dumps import BOMBS, as_json, dump, entry
from slow_shards import resolved, sorted_absent
from torch_pickles import FRAMES, odd_dumps, regular_dumps, torch_pickled

from unhang.errors import UnreadableInput
from unhang.model import CallState, Unavailable, join
from unhang.read.dumps import DumpFile, Shard, decode
from unhang.read.dumps.decode import decode_shard
from unhang.read.dumps.engine import LocalEngine, run_all
from unhang.read.dumps.layouts import Layout, keys_of
from unhang.read.dumps.objects import decode_objects

FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
COUNTS = st.sampled_from([None, 1, 3, 64])
# A byte that stands for something else to a pickle: opcodes that use the memo, or that take no operand.
OTHERS = (b"N", b"", b"](e", b"}(u", b"h\x05", b"q\x05", b"K\x05", b"\x88", b"h\x20q\x10")


@contextmanager
def only_fast() -> Iterator[None]:
    """Fails where a dump is decoded through objects."""

    def fail(file: DumpFile, *_: Any) -> Any:
        raise AssertionError(f"{file} is decoded slowly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "decode_objects", fail)
        yield


@contextmanager
def short_windows() -> Iterator[None]:
    """Heads and tails so short that small dumps have a part that is not read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "HEAD_BYTES", 1500)
        patch.setattr(decode, "DEFINING_BYTES", 800)
        patch.setattr(decode, "ENTRY_BYTES", 300)
        yield


def fast(datas: Sequence[bytes], **options: Any) -> Shard:
    files = [DumpFile(rank, f"dump {rank}") for rank in range(len(datas))]
    return decode_shard(files, read=lambda file: datas[file.rank], **options)


def slow(datas: Sequence[bytes], last: int | None = None, frames: bool = True) -> Shard:
    decoded, absent = [], []
    for rank, data in enumerate(datas):
        try:
            decoded.append(decode_objects(DumpFile(rank, f"dump {rank}"), data, last, frames))
        except UnreadableInput as error:
            absent.append(Unavailable(f"dump of rank {rank}", str(error)))
    shard = Shard(absent=(*absent, *(a for d in decoded for a in d.absent)))
    if decoded:
        shard = replace(
            shard, table=join([d.table for d in decoded]), dumps={d.dump.file.rank: d.dump for d in decoded}
        )
    return shard


def assert_same(datas: Sequence[bytes], **options: Any) -> Shard:
    got, expected = fast(datas, **options), slow(datas, **options)
    for part, other in zip(resolved(got.table), resolved(expected.table), strict=True):
        assert part == other
    assert dict(got.dumps) == dict(expected.dumps)
    assert sorted_absent(got) == sorted_absent(expected)
    return got


@FUZZED
@given(st.lists(regular_dumps(), min_size=1, max_size=3), COUNTS, st.booleans())
def test_what_torch_writes_is_decoded_without_objects(made: list[Any], last: int | None, frames: bool) -> None:
    datas = [torch_pickled(d) for d in made]
    with only_fast():
        fast(datas, last=last, frames=frames)
    assert_same(datas, last=last, frames=frames)


@FUZZED
@given(st.lists(odd_dumps(), min_size=1, max_size=3), st.sampled_from([None, 3]), st.booleans())
def test_odd_fields(made: list[Any], last: int | None, frames: bool) -> None:
    assert_same([torch_pickled(d) for d in made], last=last, frames=frames)


@FUZZED
@given(st.lists(odd_dumps(), min_size=1, max_size=2), st.integers(2, 5))
def test_pickles_of_python(made: list[Any], protocol: int) -> None:
    assert_same([pickle.dumps(d, protocol) for d in made])


@FUZZED
@given(regular_dumps(10, 8), st.sampled_from([1, 2, 5]), st.booleans())
def test_head_and_tail_tell_what_the_whole_tells(
    tmp_path_factory: pytest.TempPathFactory, made: Any, last: int, frames: bool
) -> None:
    data = torch_pickled(made)
    file = DumpFile(1, str(tmp_path_factory.getbasetemp() / "window"))
    Path(file.path).write_bytes(data)
    with short_windows():
        got = decode_shard([file], last=last, frames=frames)
    expected = decode_objects(file, data, last, frames)
    rows, progress, *marks, _ = resolved(got.table)
    expected_rows, expected_progress, *expected_marks, _ = resolved(expected.table)
    assert (rows, marks) == (expected_rows[len(expected_rows) - len(rows) :], expected_marks)
    assert len(rows) == len(expected_rows) or made["pg_status"], "the dump does not say that fewer calls suffice"
    assert all(row in expected_progress for row in progress)
    # The first call that names a backend may lie between head and tail.
    assert replace(got.dumps[1], backend="") == replace(expected.dump, backend="")


def test_most_of_a_file_is_not_read(tmp_path: Path) -> None:
    site = {"frames": FRAMES[:20], "input_sizes": [[4, 2048, 1024]]}
    data = torch_pickled(dump([entry(i, **site) for i in range(2000)]))
    file = DumpFile(0, str(tmp_path / "nccl_trace_rank_0"))
    Path(file.path).write_bytes(data)
    read = 0
    pread = decode.os.pread

    def counting(*arguments: Any) -> bytes:
        nonlocal read
        got = pread(*arguments)
        read += len(got)
        return got

    with pytest.MonkeyPatch.context() as patch, only_fast():
        patch.setattr(decode.os, "pread", counting)
        patch.setattr(decode._Shards, "_whole", lambda self, files, last: pytest.fail(str(files)) if files else None)
        got = decode_shard([file], last=64, frames=False)
    assert len(got.table) == 64
    assert got.dumps[0].entries == 2000
    assert got.table.wrapped_ranks == {0}
    assert 0 < read < len(data) // 3


@FUZZED
@given(regular_dumps(), st.data())
def test_flipped_bytes_never_tell_something_else(made: Any, data: st.DataObject) -> None:
    spoiled = bytearray(torch_pickled(made))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(list(b"}](ueN\x86\x88\x89hjqrXKMJ\x8a.")))
        )
    assert_same([bytes(spoiled)], frames=data.draw(st.booleans()))


def memo_variants(data: bytes) -> Iterator[bytes]:
    """Each use of the memo changed in many ways, and each opcode replaced by others."""
    ops = [(at, op.name, number) for op, number, at in pickletools.genops(data)]
    last = max(number for _, name, number in ops if name == "BINPUT")
    for at, name, number in ops:
        if name in ("BINGET", "BINPUT"):
            for other in {0, 3, number - 1, number + 1, number + 9, last - 1, last, last + 1, 255} - {number, -1}:
                yield data[: at + 1] + bytes([min(other, 255)]) + data[at + 2 :]
            yield data[:at] + (b"q" if name == "BINGET" else b"h") + data[at + 1 :]
        elif name in ("BININT1", "NONE", "NEWTRUE", "NEWFALSE", "MARK", "EMPTY_LIST", "APPENDS"):
            size = 2 if name == "BININT1" else 1
            for other in OTHERS:
                yield data[:at] + other + data[at + size :]
                yield data[:at] + other + data[at:]


def test_a_memo_used_otherwise_never_tells_something_else() -> None:
    frames = [FRAMES[:3], FRAMES[1:4], [FRAMES[9], FRAMES[0]]]
    once = {"name": "once", "filename": "/home/me/train.py", "line": 300}
    made = dump(
        [
            entry(0, frames=frames[0], thread_name="main"),
            entry(1, frames=[*frames[1], once], process_group=("1", "pair"), state="started"),
            entry(2, frames=frames[0], input_dtypes=["Float", "Half"]),
            entry(3, "nccl:send 0->1", frames=frames[2], is_p2p=True, input_sizes=[]),
            entry(300, frames=frames[0]),
            entry(301, frames=frames[2], process_group=("1", "pair"), state="scheduled"),
        ]
    )
    data = torch_pickled(made)
    with only_fast():
        fast([data])
    variants = list(memo_variants(data))
    assert len(variants) > 3000
    for some, frames_too in ((variants[::4], True), (variants[1::6], False)):
        got = assert_same([*some, data], frames=frames_too)
        assert 100 < len(got.absent) < len(some)
        assert len(some) in got.dumps


def test_numbers_that_look_like_definitions() -> None:
    texts = 70
    for number in range(texts):
        looks = int.from_bytes(b"X\x01\0\0\0aq" + bytes([number]), "little")
        calls = [entry(i, time_created_ns=looks) for i in range(3)]
        assert_same([torch_pickled(dump(calls)), torch_pickled(dump([entry(0), *calls]))])
    for looks in (b"u}(h\x0f](", b"}(h\x04h\x10", b"ueu.\0\0\0\0"):
        assert_same(
            [torch_pickled(dump([entry(i, time_created_ns=int.from_bytes(looks, "little")) for i in range(3)]))]
        )


def test_numbers_out_of_range_are_lost_alone() -> None:
    numbers = [name for name, value in entry(0).items() if type(value) is int and name not in ("op_id", "pg_id")]
    datas = [torch_pickled(dump([entry(0), entry(1, **{name: -1}), entry(2)])) for name in numbers]
    got = assert_same(datas)
    assert [a.what for a in got.absent] == [f"1 of 3 calls of rank {rank}" for rank in range(len(numbers))]


def test_real_dumps_of_gloo(gloo_job: Path) -> None:
    pickles = [path.read_bytes() for path in sorted(gloo_job.glob("ranks/*/*.pickle"))]
    with only_fast():
        fast(pickles)
    got = assert_same(pickles + [path.read_bytes() for path in sorted(gloo_job.glob("ranks/*/*.json"))])
    assert {got.table.ops[i] for i in got.table["op"]} == {"all_reduce", "all_to_all", "barrier"}
    assert {(d.version, d.backend) for d in got.dumps.values()} == {("2.10", "gloo")}


def test_cut_dumps_are_unreadable(real_dump: bytes) -> None:
    cut = [real_dump[:size] for size in range(0, len(real_dump), 97)]
    got = assert_same([*cut, real_dump])
    assert set(got.dumps) == {len(cut)}
    assert len(got.absent) == len(cut)


def test_hostile_pickles_cost_nothing_of_the_others(tmp_path: Path) -> None:
    good = torch_pickled(dump([entry(0)]))
    datas = [*BOMBS.values(), good]
    files = [DumpFile(rank, str(tmp_path / f"dump_{rank}")) for rank in range(len(datas))]
    for file, data in zip(files, datas, strict=True):
        Path(file.path).write_bytes(data)
    got = run_all(LocalEngine(processes=1), decode_shard, files)
    assert set(got.dumps) == {len(BOMBS)}
    assert len(got.absent) == len(BOMBS)
    assert not Path("hacked").exists()


def test_frames_may_be_left_out() -> None:
    data = torch_pickled(dump([entry(i) for i in range(3)]))
    assert fast([data], frames=False).table["frames"].tolist() == [-1, -1, -1]
    assert fast([data], frames=False).table.stacks == ()
    assert fast([data]).dumps[0].has_frames
    assert [str(f) for f in fast([data]).table.call(0).frames or ()][1] == "train.py:12 in step"


def test_a_tail_reaches_back_to_a_completed_call_of_each_open_group() -> None:
    other = {"process_group": ("7", "dp"), "pg_id": 1}
    entries = [entry(i, **(other if i in (100, 599) else {})) for i in range(600)]
    entries[-1] |= {"state": "scheduled", "retired": False}
    datas = [torch_pickled(dump(entries)), torch_pickled(dump(entries[:-1]))]
    got = assert_same(datas, last=64, frames=False)
    assert [len(got.table.rows(rank=r)) for r in range(2)] == [512, 64]
    entries[300] |= other
    assert len(assert_same([torch_pickled(dump(entries))], last=64, frames=False).table) == 512
    entries[100] |= {"state": "scheduled", "retired": False, "pg_id": 2, "process_group": ("8", "never before")}
    entries[-1] |= {"pg_id": 2, "process_group": ("8", "never before")}
    assert len(assert_same([torch_pickled(dump(entries))], last=64, frames=False).table) == 600


@pytest.mark.parametrize("write", [torch_pickled, as_json, pickle.dumps])
def test_dumps_of_open_calls_alone(write: Any) -> None:
    waiting = {"state": "started", "retired": False, "time_discovered_completed_ns": None}
    open_calls = [entry(8, **waiting), entry(11, **waiting)]
    done = [entry(7), *open_calls]
    only_now = dump([entry(0, **waiting)], pg_status={"0": dict.fromkeys(("last_enqueued_collective",), 1)})
    gap, whole = (dump([entry(0, **waiting), entry(last, **waiting)], pg_status={}) for last in (4, 1))
    got = assert_same([write(made) for made in (dump(open_calls), dump(done), only_now, gap, whole)])
    assert got.table.active_ranks == {0, 3}
    assert got.table.wrapped_ranks == {0, 1}


def test_progress_is_told_by_group() -> None:
    numbers = {"last_enqueued_collective": 9, "last_started_collective": 8, "last_completed_collective": -1}
    status = {"3": numbers, "4": numbers}
    told = dump([entry(0, pg_id=3, process_group=("tp", "TENSOR"))], pg_status=status)
    silent = dump([], pg_status={"5": numbers})
    got = assert_same([torch_pickled(told), torch_pickled(silent)])
    names = [got.table.groups[i].name for i in got.table.progress["group"]]
    assert list(zip(got.table.progress["rank"].tolist(), names, strict=True)) == [(0, "tp"), (1, "0")]
    assert {k: v.tolist() for k, v in got.table.progress.items() if k not in ("rank", "group")} == {
        "enqueued": [9, 9], "started": [8, 8], "completed": [-1, -1],
    }  # fmt: skip


def test_states_that_are_only_implied() -> None:
    waiting = {"state": "scheduled", "retired": False}
    calls = [
        entry(0, **waiting),
        entry(1, "nccl:all_gather_into_tensor", collective_seq_id=2, **waiting),
        entry(2, "nccl:coalesced", collective_seq_id=2, state="started", retired=False),
        entry(3, "nccl:send 0->1", is_p2p=True, p2p_seq_id=1, collective_seq_id=2, **waiting),
        entry(4, "nccl:coalesced", p2p_seq_id=1, collective_seq_id=2),
        entry(5, **waiting),
        entry(6, state="started", retired=True),
    ]
    with only_fast():
        got = fast([torch_pickled(dump(calls))])
    assert_same([torch_pickled(dump(calls))])
    assert got.table["state"].tolist() == [
        CallState.COMPLETED, CallState.STARTED, CallState.STARTED, CallState.COMPLETED, CallState.COMPLETED,
        CallState.SCHEDULED, CallState.FAILED,
    ]  # fmt: skip
    assert got.table.call(3).peer == 1


def test_equal_values_have_one_number() -> None:
    datas = [torch_pickled(dump([entry(i, input_sizes=[[i % 2, rank % 2]]) for i in range(50)])) for rank in range(70)]
    table = fast(datas).table
    assert len(table) == 3500
    assert (len(table.sizes), len(table.stacks), len(table.ops), len(table.groups)) == (5, 1, 1, 1)


def test_one_file_that_is_gone_costs_nothing_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "dump_1").write_bytes(torch_pickled(dump([entry(0)])))
    files = [DumpFile(rank, str(tmp_path / f"dump_{rank}")) for rank in range(3)]
    for last in (None, 64):
        got = decode_shard(files, last=last)
        assert set(got.dumps) == {1}
        assert [a.what for a in got.absent] == ["dump of rank 0", "dump of rank 2"]
    assert len(decode_shard([]).table) == 0


def test_entries_are_found_whatever_dump_is_read_before() -> None:
    made = [
        dump([entry(n, input_sizes=[[n * 9]]) for n in range(60)]),
        dump([entry(n, "nccl:broadcast") for n in range(90)]),
    ]
    no = np.zeros(0, np.int64)
    for data in map(torch_pickled, made):
        head = decode.loaded(DumpFile(0, "dump 0"), data).head
        cuts = decode._cuts(data, head, no)
        assert len(cuts) == data.count(b"u}(" + head.get) > 50
        jumped = cuts + 7 * (np.arange(len(cuts)) >= 30)
        for others in (cuts, cuts + 5, cuts[:3], cuts[20:], jumped, np.arange(len(data)), np.array([0])):
            assert decode._cuts(data, head, others).tolist() == cuts.tolist()


def test_names_of_fields_are_found_by_a_layout_that_fits_only() -> None:
    rows = [b"}(h\x01K\x05h\x02J\x01\0\0\0u", b"}(h\x07K\x09h\x08J\x02\0\0\0u", b"}(h\x01J\x05\0\0\0h\x02K\x01u"]
    layout = Layout.of_keys(rows[0])
    assert [layout.keys_in(row) for row in rows] == [(1, 2), (7, 8), None]
    assert layout.keys_in(rows[0] + b"u") is None
    assert keys_of(rows[2]) == (1, 2)
