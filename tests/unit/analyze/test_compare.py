from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unhang.analyze.calls.compare import compare, compare_tables, step_time
from unhang.analyze.calls.schedule import group_labels
from unhang.model import Case, CollectiveTable, Frame, Job, ProcessGroup, RankEvidence, RankIdentity, TableBuilder
from unhang.read.dumps import DumpFile, RankDump

MS = 1_000_000
START = 1_790_000_000_000_000_000
STEP = ("tp/all_reduce 4", "tp/all_reduce 4", "dp/reduce_scatter 64", "world/all_reduce 1")
HALVES = {"world": [(0, 1, 2, 3)], "tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)]}

Program = Mapping[int, Sequence[str]]


def run(
    program: Program | Sequence[str],
    groups: Mapping[str, Sequence[tuple[int, ...]]] = HALVES,
    *,
    start: int = START,
    apart: int = 10 * MS,
    ring: int = 10_000,
    line: int | None = None,
    first_name: int = 0,
    told: bool = True,
) -> CollectiveTable:
    """A run of four ranks. A call is `group/op elements`, with `@line` where it has a stack; names of groups are counters."""
    table = TableBuilder()
    numbered = [(desc, ranks) for desc, all_ranks in groups.items() for ranks in all_ranks]
    index = {
        (desc, rank): table.group(ProcessGroup(str(first_name + i), desc, ranks if told else (), backend="nccl"))
        for i, (desc, ranks) in enumerate(numbered)
        for rank in ranks
    }
    by_rank = program if isinstance(program, Mapping) else dict.fromkeys(range(4), program)
    for rank, calls in by_rank.items():
        seqs: dict[str, int] = {}
        for number, text in enumerate(calls):
            what, _, at = text.partition("@")
            desc, op, count = what.replace("/", " ").split()
            seqs[desc] = seqs.get(desc, 0) + 1
            own_line = int(at) if at else line
            if number >= len(calls) - ring:
                table.add(
                    rank=rank, group=index[desc, rank], seq=seqs[desc], op=f"nccl:{op}", in_sizes=((int(count),),),
                    dtype="Float", created_ns=start + number * apart + rank, completed_ns=start + number * apart + MS,
                    frames=None if own_line is None else (Frame("/a/train.py", own_line, "step"),), record_id=number,
                )  # fmt: skip
        if len(calls) > ring:
            table.mark_wrapped(rank)
    return table.build()


def test_a_run_is_the_same_as_itself() -> None:
    found = compare_tables(run(STEP * 20, line=3), run(STEP * 20, line=3))
    assert found.is_same_program
    assert found.compared == 4 * 80
    assert found.slowdown == 1.0


@pytest.mark.parametrize(
    "other",
    [
        run(STEP * 20, start=START + 3600_000 * MS),
        run(STEP * 25, ring=60),
        run(STEP * 20, ring=33),
        run(STEP * 9),
        run(STEP * 20, first_name=40),
        run(STEP * 20, line=7),
        run(STEP * 20, told=False),
        run({r: (STEP * 20)[: 80 - r] for r in range(4)}),
    ],
    ids=[
        "another time",
        "wrapped later",
        "wrapped",
        "shorter",
        "other names",
        "with stacks",
        "no ranks told",
        "stopped",
    ],
)
def test_what_is_no_difference(other: CollectiveTable) -> None:
    for found in (compare_tables(run(STEP * 20), other), compare_tables(other, run(STEP * 20))):
        assert found.divergences == ()
        assert found.sizes == ()
        assert found.groups == () or not all(g.ranks for c in found.groups for g in (*c.ours, *c.theirs))
        assert found.compared >= 4 * 30


def test_wrapped_at_different_points_is_aligned_by_number() -> None:
    found = compare_tables(run(STEP * 30, ring=61), run(STEP * 27, ring=83))
    assert found.is_same_program
    assert found.wrapped == (4, 4)
    assert 4 * 40 < found.compared < 4 * 61


def test_the_first_call_that_differs_is_named_once_for_equal_ranks() -> None:
    calls = list(STEP * 20)
    calls[41] = "tp/all_gather 8"
    ours = run(STEP * 20)
    found = compare_tables(ours, run({0: calls, 1: calls, 2: STEP * 20, 3: STEP * 20}, start=START + 5))
    (only,) = found.divergences
    assert (only.ranks, only.group, only.seq) == ((0, 1), "tp", 22)
    assert (only.ours, only.theirs) == ("all_reduce(4 Float)", "all_gather(8 Float)")
    assert not found.is_same_program


def test_an_additional_call_shifts_the_rest_but_is_found_where_it_stands() -> None:
    calls = [*STEP * 10, "tp/broadcast 9", *STEP * 10]
    (only,) = compare_tables(run(STEP * 20), run(calls)).divergences
    assert (only.ranks, only.seq) == ((0, 1, 2, 3), 21)
    assert (only.ours, only.theirs) == ("all_reduce(4 Float)", "broadcast(9 Float)")
    (only,) = compare_tables(run(calls), run(STEP * 20)).divergences
    assert only.ours == "broadcast(9 Float)"


def test_a_divergence_after_the_buffers_wrapped() -> None:
    calls = [*STEP * 26, "dp/all_reduce 64", *STEP * 4]
    (only,) = compare_tables(run(STEP * 30, ring=50), run(calls, ring=60)).divergences
    assert (only.group, only.seq, only.theirs) == ("dp", 27, "all_reduce(64 Float)")


def test_members_of_a_batch_are_told_apart() -> None:
    def batch(sends: int) -> CollectiveTable:
        table = TableBuilder()
        group = table.group(ProcessGroup("0", "pp", (0, 1)))
        for seq in (1, 2):
            for member in range(sends if seq == 2 else 2):
                table.add(rank=0, group=group, seq=seq, op="nccl:send 0->1", is_p2p=True, peer=1,
                          in_sizes=((member + 1,),), created_ns=START + seq, record_id=10 * seq + member)  # fmt: skip
        return table.build()

    assert compare_tables(batch(2), batch(2)).divergences == ()
    (only,) = compare_tables(batch(2), batch(3)).divergences
    assert (only.seq, only.ours, only.theirs) == (2, "", "send 0->1(3)")
    (only,) = compare_tables(batch(3), batch(2)).divergences
    assert (only.seq, only.ours, only.theirs) == (2, "send 0->1(3)", "")


def test_other_sizes_are_named_by_op() -> None:
    found = compare_tables(run(STEP * 5), run([c.replace("64", "128") for c in STEP * 5]))
    (only,) = found.sizes
    assert (only.desc, only.op, only.ours, only.theirs) == ("dp", "reduce_scatter", ("64 Float",), ("128 Float",))
    assert [d.seq for d in found.divergences] == [1]


def test_a_changed_line_is_named_only_where_the_calls_are_equal() -> None:
    moved = run(STEP * 5, line=4)
    (only,) = compare_tables(run(STEP * 5, line=3), moved).divergences
    assert only.is_place
    assert (only.our_place, only.their_place) == ("train.py:3 in step", "train.py:4 in step")
    calls = [*STEP * 3, "tp/barrier 1", *STEP]
    (only,) = compare_tables(run(STEP * 5, line=3), run(calls, line=4)).divergences
    assert not only.is_place
    assert only.seq == 7


def test_groups_of_other_sizes_still_align() -> None:
    pairs = {**HALVES, "tp": [(0, 1, 2, 3)], "dp": [(0,), (1,), (2,), (3,)]}
    found = compare_tables(run(STEP * 5), run(STEP * 5, pairs))
    assert [(c.desc, [g.ranks for g in c.ours], [g.ranks for g in c.theirs]) for c in found.groups] == [
        ("tp", [(0, 1), (2, 3)], [(0, 1, 2, 3)]),
        ("dp", [(0, 2), (1, 3)], [(0,), (1,), (2,), (3,)]),
    ]
    assert found.compared == 80
    assert found.divergences == ()


def test_a_group_of_one_run_only() -> None:
    more = {**HALVES, "ep": [(0, 3)]}
    found = compare_tables(run(STEP * 5), run(STEP * 5, more))
    assert [(c.desc, c.ours, [g.ranks for g in c.theirs]) for c in found.groups] == [("ep", (), [(0, 3)])]


def test_groups_without_a_description_are_matched_by_name() -> None:
    def nameless(op: str) -> CollectiveTable:
        table = TableBuilder()
        groups = [table.group(ProcessGroup(str(i), "undefined", ())) for i in range(3)]
        for i in range(30):
            table.add(rank=0, group=groups[i % 3], seq=i // 3, op=op if i == 16 else f"op{i % 3}", created_ns=START + i,
                      record_id=i)  # fmt: skip
        return table.build()

    (only,) = compare_tables(nameless("op1"), nameless("barrier")).divergences
    assert (only.group, only.seq) == ("group 1", 5)


def test_calls_and_rates() -> None:
    found = compare_tables(run(STEP * 20), run([*STEP, "tp/all_reduce 4"] * 20, apart=5 * MS))
    uses = {(u.desc, u.op): u for u in found.uses}
    assert (uses["tp", "all_reduce"].our_calls, uses["tp", "all_reduce"].their_calls) == (40, 60)
    assert uses["dp", "reduce_scatter"].our_rate == pytest.approx(20 / 0.79)
    assert uses["dp", "reduce_scatter"].their_rate == pytest.approx(20 / 0.495)


def test_step_time() -> None:
    steps = [step_time(run(STEP * 20, apart=apart)) for apart in (10 * MS, 30 * MS)]
    assert [(s.seconds, s.calls, s.ranks) for s in steps if s] == [(0.04, 4, 4), (0.12, 4, 4)]
    long = ["tp/all_reduce 4"] * 60 + ["world/all_reduce 1"]
    assert (found := step_time(run(long * 8))) is not None
    assert found.calls == 61
    noise = np.random.default_rng(5)
    assert step_time(run([f"tp/all_reduce {n}" for n in noise.integers(1, 999, 80)])) is None
    assert step_time(CollectiveTable.empty()) is None


def test_a_slow_run_is_the_same_program() -> None:
    found = compare_tables(run(STEP * 20, apart=30 * MS), run(STEP * 20))
    assert found.is_same_program
    assert found.slowdown == pytest.approx(3)


def case(table: CollectiveTable, ranks: Sequence[int] = range(4), **identity: Any) -> Case:
    evidence = {r: RankEvidence(RankIdentity(r, 4, **identity)) for r in ranks}
    return Case(job=Job(world_size=4), ranks=evidence, groups=table.groups, calls=table)


def test_ranks_and_software() -> None:
    table = run(STEP * 2)
    found = compare(case(table, torch_version="2.12"), case(table, (0, 1, 3), torch_version="2.13", backend="nccl"))
    assert found.our_ranks_only == (2,)
    assert found.world == (4, 4)
    assert [(p.what, p.ours, p.theirs) for p in found.software] == [("torch", "2.12", "2.13")]
    dumps = [{0: RankDump(DumpFile(0, "x"), version, "nccl")} for version in ("2.9", "2.10")]
    found = compare(case(table), case(table), *dumps)
    assert [(p.what, p.ours, p.theirs) for p in found.software] == [("flight recorder", "2.9", "2.10")]
    assert compare(case(table), case(table)).is_same_program


def test_tables_without_calls() -> None:
    nothing = CollectiveTable.empty()
    assert compare_tables(nothing, nothing).is_same_program
    assert compare_tables(run(STEP), nothing).compared == 0
    assert compare_tables(nothing, run(STEP)).divergences == ()


def test_a_dump_of_open_calls_alone_says_nothing_of_the_others() -> None:
    whole = run(STEP * 20)
    kept = whole["record_id"] % 7 == 0
    few = replace(whole, columns={k: c[kept] for k, c in whole.columns.items()}, active_ranks=frozenset(range(4)))
    assert compare_tables(whole, few).divergences == ()
    assert compare_tables(few, whole).divergences == ()


def test_nonsense_numbers_do_no_harm() -> None:
    ours = run(STEP * 3)
    seq = ours["seq"].copy()
    seq[-1] = np.iinfo(np.int64).max - 1
    odd = replace(ours, columns={**ours.columns, "seq": seq})
    assert compare_tables(odd, odd).is_same_program
    assert compare_tables(ours, odd).compared >= 4 * 12 - 2


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 40), st.booleans())
def test_the_first_difference_is_found_wherever_it_is(seed: int, ring_a: int, ring_b: int, differs: bool) -> None:
    noise = np.random.default_rng(seed)
    calls = [f"{('world', 'tp', 'dp')[n % 3]}/all_reduce {n}" for n in noise.integers(1, 6, 60)]
    other = list(calls)
    at = int(noise.integers(60))
    if differs:
        other[at] = other[at].replace("all_reduce", "broadcast")
    found = compare_tables(run(calls, ring=ring_a), run(other, ring=ring_b))
    back = 60 - at
    desc = calls[at].split("/")[0]
    before = [c for c in calls[max(60 - ring_a, 60 - ring_b) : at] if c.startswith(desc)]
    if differs and back <= min(ring_a, ring_b) and before:
        (only,) = found.divergences
        assert (only.ranks, only.group, only.seq) == (
            (0, 1, 2, 3),
            desc,
            sum(c.startswith(desc) for c in calls[: at + 1]),
        )
    elif not differs:
        assert found.divergences == ()
        assert found.is_same_program


def test_one_of_several_equal_groups_may_be_missing() -> None:
    groups = [ProcessGroup(str(i), "tp", (0, 1)) for i in range(3)]
    found = compare_tables(CollectiveTable.empty(groups), CollectiveTable.empty(groups[:1]))
    assert [(c.desc, len(c.ours), len(c.theirs)) for c in found.groups] == [("tp", 2, 0)]
    ours, theirs = group_labels(CollectiveTable.empty(groups), CollectiveTable.empty(groups[:1]))
    assert ours[0] == theirs[0]
    assert not set(ours[1:]) & set(theirs)
