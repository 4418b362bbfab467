"""Alignment, waits-for graph, divergence: on small cases with a known answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unhang.analyze.calls.align import stuck_collectives
from unhang.analyze.program.callpath import fork_of, user_path
from unhang.analyze.program.source import catches_stop_iteration, surroundings
from unhang.analyze.situation import Situation
from unhang.model import ProcessState, ThreadStack
from unhang.testing import make_case, path, pending

LOOP = ["all_reduce[8]@main:10", "all_reduce[1]@main:12"]


def test_the_majority_is_the_reference_even_if_rank_0_is_wrong() -> None:
    case = make_case({0: ["barrier@main:3 !"], **{r: ["all_reduce[8]@main:4 !"] for r in (1, 2, 3)}})
    (stuck,) = stuck_collectives(case)
    assert stuck.classes == ((1, 2, 3), (0,))
    assert stuck.has_majority


def test_without_a_majority_it_is_said() -> None:
    case = make_case({r: ["barrier@main:3 !" if r < 2 else "all_reduce[8]@main:4 !"] for r in range(4)})
    divergence = Situation(case).divergence
    assert divergence is not None
    assert not divergence.has_majority


def test_equal_calls_pair_silently_until_the_change_point_is_found() -> None:
    first = ["all_gather[4]@main:5>train:20"] * 3
    other = ["all_gather[4]@main:5>send:30"] * 3
    case = make_case(
        {
            0: [*LOOP, *other, "all_gather[4]@main:5>train:20 !"],
            **{r: [*LOOP, *first, "all_reduce[9]@main:5>train:22 !"] for r in (1, 2)},
        },
        world=3,
    )
    divergence = Situation(case).divergence
    assert divergence is not None
    assert (divergence.seq, divergence.stuck_seq, divergence.odd) == (3, 6, (0,))
    assert divergence.fork is not None
    assert divergence.fork.same_line


def test_habitual_differences_of_path_are_no_divergence() -> None:
    source, receiver = ["broadcast[4]@main:5", *LOOP] * 4, ["broadcast[4]@main:7", *LOOP] * 4
    case = make_case(
        {0: [*source, "barrier@main:20 !"], **{r: [*receiver, "all_reduce[8]@main:10 !"] for r in (1, 2, 3)}}
    )
    divergence = Situation(case).divergence
    assert divergence is not None
    assert divergence.seq == len(source) + 1


def test_the_chain_over_two_groups_ends_at_its_root() -> None:
    case = make_case(
        {1: ["a/all_gather[4]@main:4 !"], 2: ["a/all_gather[4]@main:4 !"], 0: ["b/broadcast[4]@main:6 !"]},
        groups={"a": (0, 1, 2), "b": (0, 3)},
        stacks={0: "main:6>~comm", 1: "main:4>~comm", 2: "main:4>~comm", 3: "handler:9"},
    )
    situation = Situation(case)
    assert situation.waits.roots == (3,)
    assert situation.late[0].victims == (0, 1, 2)
    assert situation.proven == ()


def test_a_dead_peer_proves_the_wait() -> None:
    case = make_case({0: ["barrier@main:4 !"]}, world=2, stacks={0: "main:4>~comm"}, states={1: ProcessState("gone")})
    assert Situation(case).proven == (0,)


def test_an_open_async_call_does_not_block() -> None:
    case = make_case({0: ["all_reduce[8]@main:4 !"]}, world=2, stacks={0: "main:9", 1: "main:3"})
    assert Situation(case).waits.edges == ()


def test_two_receivers_wait_for_each_other() -> None:
    case = make_case(
        {},
        world=2,
        pending={0: [pending("recv", peer=1, where="main:4")], 1: [pending("recv", peer=0, where="main:4")]},
        stacks=dict.fromkeys(range(2), "main:4>~comm"),
    )
    assert Situation(case).waits.cycles == ((0, 1),)
    assert Situation(case).proven == (0, 1)


_IN_CALL, _JOINS = "run:20>~comm", "main:9>~queue"


def _threaded(main: str, thread: str, begins: int = 0) -> dict[str, Any]:
    """The stacks of a rank with two threads, of which the second has a number of its own."""
    stacks = [ThreadStack(n, path(p), n == "main") for n, p in (("main", main), ("t", thread))]
    return {"stacks": tuple(replace(s, ident=100_000 + begins + i) for i, s in enumerate(stacks))}


@pytest.mark.parametrize(
    ("thread", "proven"),
    [
        ("run:15", ()),  # it writes; then it comes to the barrier, and the other one goes on
        ("run:15>~child", ()),
        (_IN_CALL, (0, 1)),
        ("other:15", (0, 1)),  # nothing tells that it makes these calls
        ("run:15>~queue", (0, 1)),  # it waits for orders, of a main thread that waits
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_circle_of_ranks_is_none_of_threads_where_the_one_that_is_awaited_works(
    thread: str, proven: tuple[int, ...], is_first: bool
) -> None:
    """Rank 1 waits in a thread for that of rank 0, which is no further than before its call."""
    before = [] if is_first else ["a/gather[4]@run:10 thread=t{}00001"]
    calls = {
        0: [*(t.format(1) for t in before), "all_reduce[8]@main:4 thread=m100000 !"],
        1: [*(t.format(2) for t in before), "a/barrier@run:20 thread=t200001 !"],
    }
    more = {0: _threaded("main:4>~comm", thread), 1: _threaded(_JOINS, _IN_CALL, 100_000)}
    found = Situation(make_case(calls, world=2, groups={"a": (0, 1)}, more=more)).proven
    assert found == (proven if is_first or thread != "other:15" else ())


def test_a_circle_of_ranks_is_none_where_the_main_thread_works() -> None:
    calls = {0: ["a/barrier@run:20 thread=t100001 !"], 1: ["all_reduce[8]@main:4 thread=m200000 !"]}
    before = {r: [f"all_reduce[8]@main:4 thread=m{r + 1}00000", *c] for r, c in calls.items()}
    more = {0: _threaded("main:5", _IN_CALL), 1: _threaded("main:4>~comm", "run:15", 100_000)}
    assert Situation(make_case(before, world=2, groups={"a": (0, 1)}, more=more)).proven == ()


@pytest.mark.parametrize(
    ("line", "proven"),
    [
        ("helper.join(5)", ()),
        ("helper.join(timeout=limit)", ()),
        ("future.result(limit)", ()),
        ("orders.get(True, 5)", ()),
        ("helper.join()", (0, 1)),
        ("orders.get(True)", (0, 1)),
    ],
)
def test_a_thread_that_waits_with_a_limit_may_still_make_the_call(
    tmp_path: Path, line: str, proven: tuple[int, ...]
) -> None:
    """A check of the peers in a thread, for the end of which the main thread waits for some seconds only."""
    file = tmp_path / "train.py"
    file.write_text(f"def main():\n    {line}\n")
    known = [f"all_reduce[8]@main:4 thread=m{r + 1}00000" for r in range(2)]
    calls = {
        0: [known[0], "a/barrier@run:20 thread=t100001 !"],
        1: [known[1], "all_reduce[8]@main:4 thread=m200000 !"],
    }
    asks = _threaded("main:2>~join", _IN_CALL)
    asks["stacks"] = tuple(
        replace(s, frames=path("main:2>~join", str(file))) if s.is_main else s for s in asks["stacks"]
    )
    case = make_case(calls, world=2, groups={"a": (0, 1)}, stacks={1: "main:4>~comm"}, more={0: asks})
    assert Situation(case).proven == proven


@pytest.mark.parametrize(
    ("thread", "sent", "proven"),
    [("send_all:15", 0, ()), ("send_all:15", 1, ()), ("log:15", 0, ()), ("log:15", 1, (0, 1)), (_IN_CALL, 0, (0, 1))],
)
def test_two_receivers_wait_for_what_other_threads_of_theirs_still_make(
    thread: str, sent: int, proven: tuple[int, ...]
) -> None:
    """What rank 0 has sent before tells which thread of it sends; before its first it may be any."""
    earlier = [replace(pending("send", peer=1, done=True, where="send_all:14"), nth=1) for _ in range(sent)]
    waits = {r: replace(pending("recv", peer=1 - r, where="run:20"), nth=1 + sent * r) for r in range(2)}
    more = {0: _threaded(thread, _IN_CALL)}
    case = make_case(
        {}, world=2, pending={0: [*earlier, waits[0]], 1: [waits[1]]}, stacks={1: "main:4>~comm"}, more=more
    )
    assert Situation(case).proven == proven


def test_of_groups_without_a_name_nothing_is_proven() -> None:
    """Two pairs with a group each, made by hand: both have no name, and what they do is not of one group."""
    calls = {
        **{r: ["a/all_reduce[8] by SUM@main:4", "a/all_reduce[8]@main:4 !"] for r in (0, 1)},
        **{r: ["a/all_reduce[8] by MAX@main:6", "a/barrier@main:7 !"] for r in (2, 3)},
    }
    stacks = {**dict.fromkeys((0, 1), "main:4>~comm"), **dict.fromkeys((2, 3), "main:7>~comm")}
    case = make_case(calls, groups={"a": ()}, stacks=stacks)
    assert Situation(case).unlike
    assert Situation(case).proven == (0, 1, 2, 3)
    groups = tuple(replace(g, name="" if g.name == "a" else g.name) for g in case.groups)
    nameless = Situation(replace(case, groups=groups, calls=replace(case.calls, groups=groups)))
    assert not nameless.unlike
    assert nameless.proven == ()


@pytest.mark.parametrize(("main", "proven"), [("main:12", ()), ("main:12>~queue", (0, 1)), (_IN_CALL, (0, 1))])
def test_a_group_that_the_main_thread_still_comes_to_make(main: str, proven: tuple[int, ...]) -> None:
    """A thread of rank 1 waits already for what rank 0 does after the group; its main thread works on the way to it."""
    calls = {0: ["barrier@main:4"], 1: ["barrier@main:4", "a/barrier@run:20 thread=t100001 !"]}
    more = {1: _threaded(main, _IN_CALL)}
    made = {0: [pending("new_group", where="main:14", detail="0,1")]}
    case = make_case(calls, world=2, groups={"a": (0, 1)}, pending=made, stacks={0: "main:14>~comm"}, more=more)
    assert Situation(case).proven == proven


def test_a_matched_send_is_no_wait() -> None:
    case = make_case(
        {},
        world=2,
        pending={0: [pending("recv", peer=1, where="main:4")], 1: [pending("send", peer=0, done=True, where="main:5")]},
        stacks=dict.fromkeys(range(2), "main:4>~comm"),
    )
    assert Situation(case).waits.edges == ()


def test_a_store_key_proves_nothing() -> None:
    case = make_case(
        {0: ["barrier@main:4 !"]},
        world=2,
        pending={1: [pending("store_wait", detail="job/1")]},
        stacks={0: "main:4>~comm"},
    )
    assert Situation(case).proven == ()


@pytest.mark.parametrize(
    ("left", "right", "lines", "same_line"),
    [
        ("main:5>run:10", "main:5>run:12", (10, 12), False),
        ("main:5>run:10", "main:5>eval:12", (5, 5), True),
        ("main:5", "main:5>eval:12", (5, 5), True),
        ("main:5>a:1>b:2", "main:6>a:1>b:2", (5, 6), False),
    ],
)
def test_where_paths_part(left: str, right: str, lines: tuple[int, int], same_line: bool) -> None:
    fork = fork_of(user_path(path(left)), user_path(path(right)))
    assert fork is not None
    assert (fork.left.line, fork.right.line) == lines
    assert fork.same_line is same_line


SOURCE = """
def train(loader, rank):
    if rank != 0:
        return
    save()

def loop(loader, rank):
    while True:
        try:
            x = next(loader)
        except StopIteration:
            break
        for p in params:
            if rank == 0: log(p)
            reduce(p)
"""


@pytest.fixture
def source(tmp_path: object) -> str:
    file = tmp_path / "train.py"  # type: ignore[operator]
    file.write_text(SOURCE)
    return str(file)


def test_an_early_return_guards_what_follows(source: str) -> None:
    assert surroundings(source, 5).tests == ("rank == 0",)
    assert surroundings(source, 5).depends_on_rank


def test_a_condition_on_one_line(source: str) -> None:
    assert surroundings(source, 14).only_on_rank_zero
    assert not surroundings(source, 15).depends_on_rank


def test_loops_from_outside_in(source: str) -> None:
    assert [loop.header for loop in surroundings(source, 15).loops] == [8, 13]
    assert catches_stop_iteration(source, 15) == 11


def test_the_fetch_of_the_next_batch(source: str) -> None:
    assert surroundings(source, 10).fetches_next
    assert surroundings(source, 13).fetches_next
    assert not surroundings(source, 15).fetches_next


def test_unreadable_source_says_nothing(tmp_path: object) -> None:
    assert surroundings("/nowhere/train.py", 3).tests == ()
    broken = tmp_path / "broken.py"  # type: ignore[operator]
    broken.write_text("def (:\n")
    assert surroundings(str(broken), 1).loops == ()
