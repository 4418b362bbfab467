"""No file may execute code, take the memory of the machine, hang the reader or escape with another exception."""

from __future__ import annotations

import json
import os
import pickle
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import made_dumps
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unhang.errors import UnreadableInput
from unhang.model import TableBuilder
from unhang.read.dumps.objects import RecordedCalls, load
from unhang.read.launchers import read_elastic_error
from unhang.read.logs.source import read_output
from unhang.read.output_log import parse_output
from unhang.read.page import read_page
from unhang.read.restricted_pickle import PickleGuard
from unhang.read.stack_texts import read_faulthandler, read_pyspy

READERS = (load, read_pyspy, read_elastic_error, read_page, read_faulthandler, read_output)


@pytest.mark.parametrize("name", made_dumps.BOMBS)
def test_attacks_are_refused_cheaply(name, guard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace_rank_0"
    path.write_bytes(made_dumps.BOMBS[name])
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableInput) as caught:
        load(path, guard=guard)
    message = str(caught.value)
    assert "trace_rank_0" in message
    assert "\n" not in message
    assert message.count(";") >= 1
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
    assert not (tmp_path / "hacked").exists()


def test_endless_decoding_is_cut_off():
    with PickleGuard(timeout_s=0.5) as guard:
        with pytest.raises(UnreadableInput, match="takes longer than"):
            load(made_dumps.doubling_key(), guard=guard)
        assert guard.refusal(made_dumps.pickled({})) is None, "the next pickle gets a new child"


def test_an_exponential_value_costs_its_entry_only(guard):
    """Nothing of it is hashed, compared or printed."""
    value: object = ("x",)
    for _ in range(60):
        value = (value, value)
    fields = ("process_group", "profiling_name", "input_sizes", "input_dtypes", "frames", "state", "record_id")
    entries = [made_dumps.entry(0)] + [made_dumps.entry(i, **{f: value}) for i, f in enumerate(fields, 1)]
    entries += [made_dumps.entry(20, input_sizes=[value]), made_dumps.entry(21, frames=[value])]
    dump = load(made_dumps.pickled(made_dumps.dump(entries)), guard=guard)
    recorded = RecordedCalls(dump)
    assert (len(recorded.calls), len(recorded.bad)) == (1, len(entries) - 1)


@pytest.mark.parametrize("tenth", range(10))
def test_a_cut_dump_is_refused(real_dump, guard, tenth):
    with pytest.raises(UnreadableInput, match=r"cut short|empty|not a"):
        load(real_dump[: len(real_dump) * tenth // 10], guard=guard)


@pytest.mark.parametrize(
    "made",
    [
        [],
        [made_dumps.entry(0)],
        3,
        "text",
        {},
        {"version": "2.1"},
        made_dumps.dump({}),
        made_dumps.dump(None),
        {**made_dumps.dump([]), "version": 2},
        {**made_dumps.dump([]), "version": "3.0"},
        {**made_dumps.dump([]), "version": "1.4"},
    ],
    ids=repr,
)
def test_other_shapes_are_refused(made, guard):
    with pytest.raises(UnreadableInput, match=r"^here: .*; "):
        load(made_dumps.pickled(made), guard=guard, name="here")
    if isinstance(made, dict):
        with pytest.raises(UnreadableInput, match=r"^here: .*; "):
            load(json.dumps(made).encode(), name="here")


BAD_ENTRIES = [
    None,
    [],
    {},
    made_dumps.entry(1, profiling_name=...),
    made_dumps.entry(1, profiling_name=7),
    made_dumps.entry(1, state=...),
    made_dumps.entry(1, state=1),
    made_dumps.entry(1, collective_seq_id=2**80),
    made_dumps.entry(1, collective_seq_id=-1),
    made_dumps.entry(1, collective_seq_id="1"),
    made_dumps.entry(1, record_id=True),
    made_dumps.entry(1, time_created_ns=1.5),
    made_dumps.entry(1, process_group=(1, 2)),
    made_dumps.entry(1, process_group=[]),
    made_dumps.entry(1, process_group=..., pg_id=...),
    made_dumps.entry(1, input_sizes=[["a"]]),
    made_dumps.entry(1, input_sizes=[4]),
    made_dumps.entry(1, input_sizes=[[1] * 100]),
    made_dumps.entry(1, input_dtypes=[1]),
    made_dumps.entry(1, frames="x"),
    made_dumps.entry(1, frames=[{"name": 1, "filename": "x"}]),
]


@pytest.mark.parametrize("bad", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
def test_one_bad_entry_does_not_lose_the_others(bad, guard):
    good = [made_dumps.entry(0), made_dumps.entry(2)]
    builder = TableBuilder()
    dump = load(made_dumps.pickled(made_dumps.dump([good[0], bad, good[1]])), guard=guard)
    (lost,) = made_dumps.add_to_table(dump, 0, builder)
    assert lost.what == "1 of 3 calls of rank 0"
    assert builder.build()["record_id"].tolist() == [0, 2]
    with pytest.raises(UnreadableInput, match="none of its 1 entries"):
        made_dumps.add_to_table(made_dumps.dump([bad]), 0, TableBuilder())


@pytest.mark.parametrize("ranks", ["[-1, 0]", [-1], "[0, 1", 3, None, [2**40], ["0"], "{}"], ids=repr)
def test_senseless_membership_is_no_membership(ranks, guard):
    recorded = RecordedCalls(load(made_dumps.pickled(made_dumps.dump([], ranks=ranks)), guard=guard))
    assert recorded.groups["0"].ranks == ()


@pytest.mark.parametrize("config", ["", "[", "[]", 3, None, {3: 4}, {"": {}}, '{"0": 1}'], ids=repr)
def test_senseless_configurations_are_passed_over(config):
    for group in RecordedCalls(made_dumps.dump([], pg_config=config)).groups.values():
        assert group.ranks == ()


def test_a_file_of_many_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "trace_rank_0"
    path.touch()
    os.truncate(path, 50 << 30)
    for reader in READERS[:-1]:
        with pytest.raises(UnreadableInput, match="larger than"):
            reader(path)
    assert read_output(path).lines == ()


@pytest.mark.parametrize("reader", READERS)
def test_folders_pipes_and_missing_files(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe", "missing", "nul\0"):
        with pytest.raises(UnreadableInput):
            reader(tmp_path / name)


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes changed, removed or doubled."""
    spots = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    cuts = st.tuples(st.integers(0, len(data)), st.integers(0, 40), st.integers(0, 2))

    def mutated(changes: list[tuple[int, int]], cut: tuple[int, int, int]) -> bytes:
        made = bytearray(data)
        for at, value in changes:
            made[at] = value
        at, length, times = cut
        return bytes(made[:at] + made[at : at + length] * times + made[at + length :])

    return st.builds(mutated, spots, cuts)


def refusal(read: Callable[[], object]) -> str:
    """The message of UnreadableInput, empty where it was read."""
    try:
        read()
    except UnreadableInput as error:
        return str(error)
    return ""


FUZZED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZED
@given(data=st.data())
def test_only_unreadable_input_escapes_a_damaged_pickle(data, real_dump, guard):
    content = data.draw(mutations(real_dump))
    message = refusal(lambda: made_dumps.add_to_table(load(content, guard=guard), 0, TableBuilder()))
    assert "\n" not in message


@FUZZED
@given(data=st.data())
def test_only_unreadable_input_escapes_damaged_json(data, gloo_job):
    content = next(gloo_job.glob("ranks/r0-*/flight.json")).read_bytes()
    content = data.draw(mutations(content))
    assert "\n" not in refusal(lambda: made_dumps.add_to_table(load(content), 0, TableBuilder()))


@FUZZED
@given(content=st.binary(max_size=600))
def test_no_reader_falls_over_random_bytes(content, tmp_path_factory, guard):
    path: Path = tmp_path_factory.getbasetemp() / "random_3.bin"
    path.write_bytes(content)
    parse_output(content)
    for reader in READERS[1:]:
        assert str(path) in (refusal(partial(reader, path)) or str(path))


def test_pickles_of_python_itself_are_read(guard):
    made = made_dumps.dump([made_dumps.entry(0)])
    for protocol in range(6):
        assert load(pickle.dumps(made, protocol), guard=guard) == made


def test_text_that_cannot_be_printed_is_replaced(guard):
    made = made_dumps.dump(
        [made_dumps.entry(0, "nccl:a\udc80", process_group=("\udc80", "\udc80"), thread_name="\udc80")]
    )
    builder = TableBuilder()
    made_dumps.add_to_table(load(made_dumps.pickled({**made, "pg_config": "\udc80"}), guard=guard), 0, builder)
    call = builder.build().call(0)
    (call.op + call.group.name + call.group.desc + call.thread).encode()
