"""The plan of the verified collectives, and the data whose reductions are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unhang.check.collectives.suite import DTYPES, FAMILIES, Case, group_of, make_plan, splits
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    import torch

    from unhang.check.collectives.patterns import PERIOD, Pattern, compare, compare_parts, compare_sum

ALL_DTYPES = ("float32", *DTYPES)


@pytest.fixture(scope="module", autouse=True)
def _torch_is_imported() -> None:
    """Not where the tests are collected, which every worker does."""
    import torch

    from unhang.check.collectives import patterns

    globals().update(vars(patterns), torch=torch)


def _pattern(dtype: str = "float32", salt: int = 3) -> Pattern:
    return Pattern(getattr(torch, dtype), torch.device("cpu"), salt)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 17])
def test_every_group_has_two_ranks_or_more_and_no_rank_twice(world_size: int) -> None:
    for name, groups in splits(world_size).items():
        members = [rank for group in groups for rank in group]
        assert len(members) == len(set(members)), name
        assert all(len(group) >= min(2, world_size) and list(group) == sorted(group) for group in groups), name
        assert len(members) >= world_size - 1
    if world_size >= 4:
        for rank in range(world_size):
            mine = [set(group_of(name, rank, world_size)) - {rank} for name in ("pairs", "other pairs")]
            assert not mine[0] & mine[1], "no pair is tried twice"


def test_all_is_every_operation_in_every_size_dtype_and_group() -> None:
    plan = make_plan(4)
    assert {case.op for case in plan} == set(FAMILIES)
    assert len({case.name for case in plan}) == len(plan)
    reduced = [case for case in plan if case.op == "all_reduce"]
    assert {1, 256, 1 << 18, 1_000_003} <= {case.size for case in reduced}
    assert {case.dtype for case in reduced} == set(ALL_DTYPES)
    assert {case.reduction for case in reduced} == {
        "sum", "min", "max", "product", "avg", "premul_sum", "band", "bor", "bxor"
    }  # fmt: skip
    assert {case.root for case in plan if case.op == "broadcast"} == {0, 1, 2, 3}
    assert all(plan.index(Case("new_group", 0, group=c.group)) < plan.index(c) for c in reduced if c.group != "all")


@pytest.mark.parametrize(("name", "ops"), [
    ("all_gather", {"all_gather", "all_gather_into_tensor", "all_gather_uneven"}),
    ("all_to_all_single", {"all_to_all_single"}),
    ("groups_in_order", {"groups_in_order"}),
])  # fmt: skip
def test_a_name_selects_a_family_or_one_operation_with_the_groups_it_needs(name: str, ops: set[str]) -> None:
    plan = make_plan(4, [name])
    assert {case.op for case in plan} == ops | {"init_process_group", "new_group"}
    assert [case.group for case in plan[1:4]] == ["halves", "pairs", "other pairs"]


def test_no_case_is_larger_than_asked_for() -> None:
    assert max(case.size for case in make_plan(2, ["broadcast"], 4 * 256) if case.dtype == "float32" and case.group == "all"
               and not case.root and case.size != 1003) == 256  # fmt: skip


@pytest.mark.parametrize("names", [["nothing"], [], ["all_reduce", ""]])
def test_wrong_names_are_refused(names: list[str]) -> None:
    with pytest.raises(WrongUsage, match="there are: all, all_gather"):
        make_plan(4, names)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 5, 300])
def test_sums_are_exact_in_any_order(dtype: str, world_size: int) -> None:
    pattern, ranks = _pattern(dtype), range(world_size)
    parts = [pattern.contributed(rank, ranks, 500, "sum") for rank in ranks]
    expected = pattern.reduced(ranks, 500, "sum")
    for order in (parts, parts[::-1]):
        total = torch.zeros(500, dtype=parts[0].dtype)
        for part in order:
            total += part
        assert torch.equal(total, expected)
    assert (expected != expected[0]).any() or dtype == "bool" or world_size == 300
    assert sum(bool(part.any()) for part in parts) == world_size, "every rank contributes"


@pytest.mark.parametrize(("reduction", "torch_op"), [
    ("min", "minimum"), ("max", "maximum"), ("product", "mul"),
    ("band", "bitwise_and"), ("bor", "bitwise_or"), ("bxor", "bitwise_xor"),
])  # fmt: skip
def test_other_reductions_are_exact(reduction: str, torch_op: str) -> None:
    for dtype in ("int32",) if reduction.startswith("b") else ("float32", "bfloat16", "int32"):
        pattern, ranks = _pattern(dtype), range(30)
        total = pattern.contributed(0, ranks, 99, reduction)
        for rank in ranks[1:]:
            total = getattr(torch, torch_op)(total, pattern.contributed(rank, ranks, 99, reduction))
        assert torch.equal(total, pattern.reduced(ranks, 99, reduction))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_what_a_rank_sends_differs_by_rank_place_and_case(dtype: str) -> None:
    one = _pattern(dtype).moved(1, 400)
    assert not torch.equal(one, _pattern(dtype).moved(2, 400))
    assert not torch.equal(one[1:], one[:-1])
    assert not torch.equal(one, _pattern(dtype, salt=4).moved(1, 400)) or dtype == "bool"
    if dtype != "bool":
        assert not (one == _pattern(dtype).empty(1)).any(), "an element that nothing was written to is wrong"


def test_the_first_wrong_element_is_told() -> None:
    expected = torch.arange(10.0)
    got = expected.clone()
    got[4], got[7] = -1, float("nan")
    wrong = compare(got, expected, [2])
    assert wrong is not None
    assert (wrong.first_index, wrong.expected, wrong.got, wrong.count, wrong.sources) == (4, "4.0", "-1.0", 2, (2,))
    assert str(wrong) == "element 4 is -1.0, not 4.0 (2 of 10 wrong)"
    assert compare(expected, expected.clone()) is None
    assert compare(expected[:9], expected) is not None
    assert compare(expected * (1 + 1e-7), expected, relative=1e-6) is None
    assert compare(expected * 1.01, expected, relative=1e-6) is not None


def test_the_source_of_a_wrong_part_is_told() -> None:
    right = torch.ones(4)
    wrong = compare_parts([(right, right, 5), (right * 2, right, 6), (right, right, 7)])
    assert wrong is not None
    assert (wrong.first_index, wrong.count, wrong.size, wrong.sources) == (4, 4, 12, (6,))


@pytest.mark.parametrize("is_longer_than_the_period", [False, True])
def test_a_missing_or_doubled_contribution_is_told_and_nothing_else(is_longer_than_the_period: bool) -> None:
    pattern, ranks = _pattern(), (0, 1, 2, 3)
    count = PERIOD + 50 if is_longer_than_the_period else 100
    parts = [pattern.contributed(rank, ranks, count, "sum") for rank in ranks]
    total = torch.stack(parts).sum(0)
    assert compare_sum(total, pattern, ranks, count) is None
    missing = compare_sum(total - parts[2], pattern, ranks, count)
    doubled = compare_sum(total + parts[1], pattern, ranks, count)
    assert missing is not None
    assert doubled is not None
    assert (missing.missing_rank, missing.doubled_rank) == (2, None)
    assert (doubled.missing_rank, doubled.doubled_rank) == (None, 1)
    total[9] += 1
    one = compare_sum(total, pattern, ranks, count)
    both = compare_sum(total - parts[0] - parts[1], pattern, ranks, count)
    assert one is not None
    assert both is not None
    assert (one.missing_rank, one.doubled_rank, both.missing_rank, both.doubled_rank) == (None,) * 4


def test_one_element_never_names_a_rank() -> None:
    pattern, ranks = _pattern(), (0, 1, 2)
    wrong = compare_sum(pattern.reduced(ranks, 1, "sum") - pattern.contributed(1, ranks, 1, "sum"), pattern, ranks, 1)
    assert wrong is not None
    assert wrong.missing_rank is None
