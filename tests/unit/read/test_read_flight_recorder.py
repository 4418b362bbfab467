"""Dumps of every version and both writers."""

from __future__ import annotations

import json

import made_dumps
import pytest
from made_dumps import dump, entry

from unhang.model import CallState, Frame, ProcessGroup, RaisedError, TableBuilder
from unhang.read.dumps.objects import RecordedCalls, load, mark_failed, unite


def table(made, rank=0, membership=None):
    builder = TableBuilder()
    assert made_dumps.add_to_table(made, rank, builder, membership) == ()
    return builder.build()


def calls(made, **more):
    return list(table(made, **more).calls_of(0))


@pytest.mark.parametrize("minor", range(11))
@pytest.mark.parametrize("write", [made_dumps.pickled, made_dumps.as_json])
def test_every_version_of_both_formats(minor, write, guard):
    made = dump([entry(0, minor=minor), entry(1, "nccl:broadcast", minor=minor, state="started", retired=False)], minor)
    first, second = calls(load(write(made), guard=guard))
    assert (first.op, second.op) == ("all_reduce", "broadcast")
    assert (first.state, second.state) == (CallState.COMPLETED, CallState.STARTED)
    assert (first.seq, second.seq) == (1, 2)
    assert first.group.ranks == (0, 1)
    assert (first.group.name, first.group.backend) == ("0", "nccl")
    assert first.in_sizes == ((4, 3),)
    assert first.dtype == ("Float" if minor >= 3 else "")
    assert first.timeout_ms == (600_000 if minor >= 3 else None)
    assert first.thread == ("pt_main_thread 139664455928704" if minor >= 5 else "")
    assert first.completed_ns == 1_795_000_000_000_000_200
    if write is made_dumps.pickled:
        assert first.frames == tuple(Frame(f["filename"], f["line"], f["name"]) for f in made_dumps.FRAMES)
        assert first.frames[1].is_user
    else:
        assert first.frames is None


def test_gloo_completion_is_retired():
    made = dump([entry(i, "gloo:all_reduce", state="scheduled", retired=i == 0) for i in range(2)])
    assert [c.state for c in calls(made)] == [CallState.COMPLETED, CallState.SCHEDULED]


def test_nccl_call_that_was_retired_without_completing_has_timed_out():
    made = dump([entry(0, state="started", retired=True)])
    assert calls(made)[0].state == CallState.FAILED


def test_unknown_times_are_zero():
    for unknown in (None, 0):
        made = dump([entry(0, state="scheduled", retired=False, time_discovered_completed_ns=unknown)])
        assert calls(made)[0].completed_ns is None


def test_point_to_point_names_the_global_peer():
    made = dump(
        [
            entry(0, "nccl:send 0->1", process_group=("7", "pp"), is_p2p=True, p2p_seq_id=5, collective_seq_id=0),
            entry(1, "nccl:recv 0<-2", process_group=("7", "pp"), is_p2p=True, p2p_seq_id=6, collective_seq_id=0),
            entry(2, "nccl:recv 0<-9", process_group=("7", "pp"), is_p2p=True, p2p_seq_id=7, collective_seq_id=0),
        ],
        pg_config={"7": {"name": "7", "desc": "pp", "ranks": [4, 8, 12]}},
    )
    sent, received, unknown = calls(made)
    assert (sent.op, sent.peer, sent.seq, sent.is_p2p) == ("send", 8, 5, True)
    assert (received.op, received.peer, received.seq) == ("recv", 12, 6)
    assert unknown.peer is None


def test_point_to_point_before_the_flag_existed():
    (sent,) = calls(dump([entry(0, "nccl:send 0->1", minor=2, p2p_seq_id=3)], 2))
    assert (sent.is_p2p, sent.peer, sent.seq) == (True, 1, 3)


def test_coalesced_batch_has_the_state_of_its_last_entry():
    waiting = {"state": "scheduled", "retired": False}
    for state in ("completed", "started"):
        made = dump(
            [
                entry(0, "nccl:send 0->1", is_p2p=True, p2p_seq_id=1, collective_seq_id=0, **waiting),
                entry(1, "nccl:recv 0<-1", is_p2p=True, p2p_seq_id=1, collective_seq_id=0, **waiting),
                entry(
                    2, "nccl:coalesced", p2p_seq_id=1, collective_seq_id=0, state=state, retired=state == "completed"
                ),
            ]
        )
        assert {c.state.name for c in calls(made)} == {state.upper()}


def test_untracked_nccl_call_before_a_completed_one_is_completed():
    made = dump(
        [
            entry(0, state="scheduled", retired=False),
            entry(1),
            entry(2, state="scheduled", retired=False),
        ]
    )
    assert [c.state.name for c in calls(made)] == ["COMPLETED", "COMPLETED", "SCHEDULED"]


@pytest.mark.parametrize("config", ['{"0": {"name": "0", "ranks": "[3, 5]"}}', {"0": [3, 5]}])
def test_other_spellings_of_the_configuration(config):
    assert calls(dump([entry(0)], pg_config=config))[0].group.ranks == (3, 5)


def test_callers_membership_wins_and_keeps_its_timeout():
    group = ProcessGroup("0", "default_pg", (0, 1, 2), 5.0)
    (call,) = calls(dump([entry(0)]), membership={"0": group})
    assert call.group == ProcessGroup("0", "default_pg", (0, 1, 2), 5.0, "nccl")


def test_hashed_group_names_and_unknown_groups():
    (call,) = calls(dump([entry(0, process_group=("a1b2c3", "mesh_dp"))]))
    assert (call.group.name, call.group.desc, call.group.ranks) == ("a1b2c3", "mesh_dp", ())


def test_wrapped_ring():
    assert table(dump([entry(5)]), rank=3).wrapped_ranks == {3}
    assert table(dump([entry(0)])).wrapped_ranks == frozenset()


def test_dtypes_of_many_tensors_are_joined_once():
    made = dump([entry(0, input_dtypes=["Float", "Float", "Long"]), entry(1, input_dtypes=[])])
    assert [c.dtype for c in calls(made)] == ["Float,Long", ""]


def test_status_without_calls_is_a_dump():
    made = made_dumps.as_json({**dump([])})
    assert load(json.dumps({k: v for k, v in json.loads(made).items() if k != "entries"}).encode())["entries"] == []


def test_equal_stacks_are_one():
    made = dump([entry(i, frames=list(made_dumps.FRAMES)) for i in range(3)])
    assert len(table(made).stacks) == 1


def recorded(*entries):
    return RecordedCalls(dump(list(entries)))


def gloo(number, retired, **more):
    return entry(number, "gloo:all_reduce", state="scheduled", retired=retired, **more)


def test_dumps_of_two_moments():
    early = recorded(gloo(0, True, frames=...), gloo(1, False, frames=...))
    late = recorded(gloo(1, True), gloo(2, False, process_group=("9", "x")))
    merged, contradictions = unite([early, late])
    assert contradictions == 0
    assert [(c.record_id, c.state.name, c.frames is not None) for c in merged] == [
        (0, "COMPLETED", False),
        (1, "COMPLETED", True),
        (2, "SCHEDULED", True),
    ]


def test_completion_seen_after_a_failure_is_not_believed():
    early, late = recorded(gloo(0, True), gloo(1, False)), recorded(gloo(0, True), gloo(1, True))
    merged, _ = unite([early, late], distrust_completion=True)
    assert [c.state.name for c in merged] == ["COMPLETED", "SCHEDULED"]


def test_an_early_dump_from_long_before_the_failure_is_overruled():
    early, late = recorded(gloo(0, False)), recorded(gloo(0, True), gloo(1, True))
    merged, _ = unite([early, late], distrust_completion=True)
    assert [c.state.name for c in merged] == ["COMPLETED", "COMPLETED"]


def test_dumps_of_two_jobs_contradict():
    merged, contradictions = unite([recorded(gloo(0, True)), recorded(entry(0, "gloo:broadcast"))])
    assert (len(merged), contradictions) == (1, 1)


TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"
CLOSED = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("message", "function", "file", "failed"),
    [
        (CLOSED, "all_reduce", TORCH, True),
        (CLOSED, "_engine_run_backward", "/x/torch/autograd/graph.py", True),
        (CLOSED, "main", "/home/me/train.py", True),
        (CLOSED, "recv", TORCH, False),
        (CLOSED, "_store_based_barrier", TORCH, False),
        ("Timed out waiting 1800000ms for send operation to complete", "barrier", TORCH, True),
        ("Application timeout caused pair closure", "broadcast", TORCH, True),
        ("bad batch", "all_reduce", TORCH, False),
        ("Connection reset by peer", "fetch", "/home/me/data.py", False),
    ],
)
def test_the_call_in_which_a_rank_failed(message, function, file, failed):
    error = RaisedError("RuntimeError", message, 1, (Frame("<string>", 0, "wrapper"), Frame(file, 1, function)))
    made = recorded(gloo(0, True), gloo(1, True)).calls
    mark_failed(made, error)
    assert [c.state.name for c in made] == ["COMPLETED", "FAILED" if failed else "COMPLETED"]


def test_the_call_in_which_a_rank_was_aborted():
    made = recorded(gloo(0, False)).calls
    mark_failed(made, None, [(Frame("/home/me/train.py", 1, "f"),), (Frame(TORCH, 1, "all_reduce"),)])
    assert made[0].state is CallState.FAILED
