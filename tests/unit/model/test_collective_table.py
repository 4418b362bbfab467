"""Rows of the table as objects."""

from __future__ import annotations

from unhang.model import CallState, CollectiveTable, Frame, ProcessGroup
from unhang.model.calls import TableBuilder

FRAMES = (Frame("/a/train.py", 7, "step"),)


def table() -> CollectiveTable:
    """Three calls of two ranks: one open, one of which little is known, one transfer."""
    made = TableBuilder()
    world = made.group(ProcessGroup("0", "default_pg", (0, 1), backend="nccl"))
    pair = made.group(ProcessGroup("7", "pair", (0, 1)))
    made.add(
        rank=0, group=world, seq=3, op="nccl:all_reduce", in_sizes=((4, 8),), out_sizes=((4,),), dtype="Float",
        state=CallState.STARTED, created_ns=5, started_ns=6, timeout_ms=600_000, frames=FRAMES, thread="main", record_id=9,
    )  # fmt: skip
    made.add(rank=0, group=pair, seq=4, op="nccl:send 0->1", is_p2p=True, peer=1, completed_ns=8, record_id=10)
    made.add(rank=1, group=world, seq=3, op="gloo:barrier", timeout_ms=0, peer=0)
    return made.build()


def test_a_row_as_an_object() -> None:
    call = table().call(0)
    assert (call.row, call.rank, call.group.desc, call.seq, call.op) == (0, 0, "default_pg", 3, "nccl:all_reduce")
    assert (call.in_sizes, call.out_sizes, call.dtype, call.state) == (((4, 8),), ((4,),), "Float", CallState.STARTED)
    assert isinstance(call.state, CallState)
    assert (call.is_p2p, call.peer, call.created_ns, call.completed_ns) == (False, None, 5, None)
    assert (call.timeout_ms, call.frames, call.thread, call.record_id) == (600_000, FRAMES, "main", 9)
    assert str(call) == "nccl:all_reduce(4x8 Float)"


def test_what_is_not_known_is_none() -> None:
    send, barrier = table().calls([1, 2])
    assert (send.is_p2p, send.peer, send.completed_ns, send.timeout_ms, send.frames) == (True, 1, 8, None, None)
    assert (barrier.peer, barrier.timeout_ms, barrier.completed_ns, barrier.thread) == (0, 0, None, "")


def test_rows_come_in_the_order_asked_for_and_equal_single_ones() -> None:
    made = table()
    assert made.calls([2, 0]) == [made.call(2), made.call(0)]
    assert [call.row for call in made.calls([2, 0])] == [2, 0]
    assert list(made.calls_of(0)) == made.calls([0, 1])
    assert made.calls([]) == []
    assert list(CollectiveTable.empty().calls_of(0)) == []
