"""Who belongs to a group of which that is not recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.analyze.small_tables import OPEN, case_of, reduce_, table_of
from unhang.analyze.calls.positions import members_by_exclusion
from unhang.analyze.situation import Situation
from unhang.model import CollectiveTable, ProcessGroup

_PAIRS = [ProcessGroup(name, "tp", (), backend="gloo") for name in "123"]
_IN_PAIRS = {0: "1", 1: "1", 4: "2", 5: "2", 2: "3"}


def in_groups(group_of: Mapping[int, str], groups: Sequence[ProcessGroup] = _PAIRS) -> CollectiveTable:
    """Each rank makes one call in its group, which is open in the last one alone."""
    calls: dict[int, list[dict[str, Any]]] = {}
    for rank, name in group_of.items():
        calls[rank] = [reduce_(OPEN, group=name) if name == groups[-1].name else reduce_(group=name)]
    return table_of(calls, *groups)


def test_the_rank_that_is_in_no_group_belongs_to_the_one_that_lacks_a_member() -> None:
    table = in_groups(_IN_PAIRS)
    assert members_by_exclusion(table, range(6)) == {2: (2, 3)}
    s = Situation(case_of(table, world=6))
    assert [(late.rank, late.victims) for late in s.idle_roots] == [(3, (2,))]


def test_where_several_groups_lack_a_member_the_ranks_that_made_no_call_are_missing_in_one_of_them() -> None:
    short = {0: "1", 1: "1", 4: "2", 2: "3"}
    assert members_by_exclusion(in_groups(short), range(6)) == {1: (3, 4, 5), 2: (2, 3, 5)}
    s = Situation(case_of(in_groups(short), world=6))
    assert [late.rank for late in s.idle_roots] == [3, 5]
    dp = ProcessGroup("4", "dp", (), backend="gloo")
    assert members_by_exclusion(in_groups({**short, 5: "4"}, [*_PAIRS, dp]), range(6)) == {}, "one of them is elsewhere"


def test_where_a_file_is_gone_no_rank_is_said_to_be_missing() -> None:
    s = Situation(case_of(in_groups(_IN_PAIRS), world=7, absent=[6]))
    assert s.waits.edges == ()
    assert s.idle_roots == ()


def test_what_does_not_follow_is_not_told() -> None:
    table = in_groups(_IN_PAIRS)
    assert members_by_exclusion(table, range(7)) == {}, "more ranks are left than the group lacks"
    assert members_by_exclusion(replace(table, wrapped_ranks=frozenset([3])), range(6)) == {}, "its call may be lost"
    overlapping = in_groups({**_IN_PAIRS, 5: "3", 3: "2"})
    assert members_by_exclusion(overlapping, range(6)) == {}, "all are seen"
    nameless = [replace(g, desc="undefined") for g in _PAIRS]
    assert members_by_exclusion(in_groups(_IN_PAIRS, nameless), range(6)) == {}, "nothing tells which groups are alike"
    recorded = [replace(g, ranks=(0, 1)) for g in _PAIRS]
    assert members_by_exclusion(in_groups(_IN_PAIRS, recorded), range(6)) == {}
