"""Group testing without noise: exactly the bad members and links, and never an innocent one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unhang.check.links.evidence import Answer, Group, Noise, Pair, Verdict
from unhang.check.links.search import Search

EXACT = Noise(0.0, 0.0)
Faults = tuple[int, frozenset[int], frozenset[Pair]]


def answer(group: Group, bad: Iterable[int], links: Iterable[Pair]) -> Answer:
    fails = not set(group).isdisjoint(bad) or any(set(link) <= set(group) for link in links)
    return Answer.BAD if fails else Answer.OK


def drive(search: Search, bad: Iterable[int] = (), links: Iterable[Pair] = ()) -> Verdict:
    bad, links = set(bad), set(links)
    while groups := search.next_round():
        members = [m for group in groups for m in group]
        assert len(members) == len(set(members)), "groups of a round are disjoint"
        assert set(members) <= set(range(search.n))
        assert all(list(group) == sorted(group) and len(group) > 1 for group in groups)
        assert search.next_round() == groups, "a round stands until it is answered"
        search.record([answer(group, bad, links) for group in groups])
    return search.verdict


@st.composite
def faults(draw: st.DrawFn, most_links: int = 3) -> Faults:
    n = draw(st.integers(2, 64))
    bad = draw(st.frozensets(st.integers(0, n - 1), max_size=min(n, 8)))
    good = sorted(set(range(n)) - bad)
    ends = st.tuples(st.integers(0, len(good) - 1), st.integers(0, len(good) - 1)) if good else st.nothing()
    drawn = draw(st.lists(ends, max_size=most_links)) if good else []
    links = frozenset((good[min(pair)], good[max(pair)]) for pair in drawn if pair[0] != pair[1])
    return n, bad, links


@settings(deadline=None, max_examples=100)
@given(faults(), st.integers(0, 5))
def test_the_exact_set_is_found(drawn: Faults, seed: int) -> None:
    n, bad, links = drawn
    search = Search(n, max_bad=8, max_bad_links=3, noise=EXACT, seed=seed, max_rounds=500)
    verdict = drive(search, bad, links)
    assert set(verdict.bad_members) <= bad
    assert set(verdict.bad_links) <= links
    if n - len(bad) >= 3 + 2:  # everyone has a partner more than there are bad links
        assert (set(verdict.bad_members), set(verdict.bad_links)) == (bad, links)
        assert verdict.is_complete
    elif verdict.is_complete:
        assert (set(verdict.bad_members), set(verdict.bad_links)) == (bad, links)


@settings(deadline=None, max_examples=50)
@given(faults(most_links=0), st.integers(0, 5))
def test_members_alone_take_two_rounds_where_half_of_them_are_good_for_sure(drawn: Faults, seed: int) -> None:
    n, bad, _ = drawn
    verdict = drive(Search(n, max_bad_links=0, noise=EXACT, seed=seed), bad)
    assert set(verdict.bad_members) <= bad
    if n - len(bad) >= 2:
        assert set(verdict.bad_members) == bad
    if n % 2 == 0 and n >= 4 * len(bad):
        assert verdict.rounds == (2 if bad else 1)


@settings(deadline=None, max_examples=50)
@given(faults(most_links=12), st.integers(0, 2))
def test_no_innocent_is_accused_when_more_is_bad_than_expected(drawn: Faults, expected: int) -> None:
    n, bad, links = drawn
    search = Search(n, max_bad=1, max_bad_links=expected, noise=EXACT, max_rounds=500)
    verdict = drive(search, bad, links)
    degree = {m: sum(m in link for link in links) for m in range(n)}
    cut_off = {m for m in range(n) if degree[m] > expected}  # counts as bad: see Search
    assert set(verdict.bad_members) <= bad | cut_off
    assert set(verdict.bad_links) <= links
    if verdict.is_complete:
        assert bad <= set(verdict.bad_members)
    if len(bad) > 1 and verdict.is_complete:
        raise AssertionError("more than expected are bad, and nothing says so")


def test_one_member() -> None:
    verdict = drive(Search(1))
    assert verdict.rounds == 0
    assert [u.members for u in verdict.undecided] == [(0,)]


@pytest.mark.parametrize("bad_links", [0, 2])
def test_of_two_members_a_bad_one_is_not_told_from_a_bad_link(bad_links: int) -> None:
    for bad, links in (({0}, []), ({0, 1}, []), ((), [(0, 1)])):
        verdict = drive(Search(2, max_bad_links=bad_links, noise=EXACT), bad, links)
        assert verdict.accused == ()
        assert [(u.members, u.failed_with) for u in verdict.undecided] == [((0,), (1,)), ((1,), (0,))]
        assert not verdict.is_complete
    assert drive(Search(2, noise=EXACT)).is_complete


def test_of_three_members() -> None:
    assert drive(Search(3, max_bad_links=1, noise=EXACT), {2}).bad_members == (2,)
    assert drive(Search(3, max_bad_links=1, noise=EXACT), (), [(0, 2)]).bad_links == ((0, 2),)
    verdict = drive(Search(3, max_bad_links=2, noise=EXACT), {2})
    assert [(u.members, u.failed_with) for u in verdict.undecided] == [((2,), (0, 1))], "two links may be bad as well"


def test_all_are_bad() -> None:
    verdict = drive(Search(6, noise=EXACT), range(6))
    assert verdict.accused == ()
    assert len(verdict.undecided) == 6


def test_an_accusation_shows_its_tests() -> None:
    verdict = drive(Search(16, max_bad_links=1, noise=EXACT), {5}, [(0, 1)])
    member, link = verdict.accused
    assert member.members == (5,)
    assert len({t.group for t in member.tests}) == 2
    assert all(5 in t.group and t.answer is Answer.BAD for t in member.tests)
    assert link.members == (0, 1)
    assert {t.group for t in link.tests} == {(0, 1)}


def test_a_fault_of_large_groups_only_is_said_to_be_open() -> None:
    search = Search(16, noise=EXACT)
    while groups := search.next_round():
        search.record([Answer.BAD if len(group) > 8 else Answer.OK for group in groups])
    verdict = search.verdict
    assert verdict.accused == ()
    assert [u.members for u in verdict.undecided] == [tuple(range(16))]


def test_unreachable_members_are_tested_no_more_and_excuse_their_groups() -> None:
    search = Search(8, max_bad_links=1, noise=EXACT)
    while groups := search.next_round():
        assert search.verdict.rounds == 0 or not any(3 in group for group in groups)
        search.record(
            [Answer.HUNG if {3, 6} & set(g) else Answer.OK for g in groups], [3] if search.verdict.rounds == 0 else []
        )
    assert search.verdict.unreachable == (3,)
    assert search.verdict.bad_members == (6,)
    assert not search.verdict.is_complete


def test_without_answers_the_search_ends() -> None:
    search = Search(8, noise=EXACT)
    while groups := search.next_round():
        search.record([Answer.MISSING] * len(groups))
    assert search.verdict.rounds <= 6
    assert search.verdict.accused == ()
    assert search.verdict.notes


def test_the_limit_of_rounds() -> None:
    verdict = drive(Search(64, noise=EXACT, max_rounds=2), {3})
    assert verdict.rounds == 2
    assert verdict.accused == ()
    assert "limit of 2 rounds" in verdict.notes[0]


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Search(0)
    search = Search(4)
    with pytest.raises(ValueError, match="0 answers"):
        search.record([])
    search.next_round()
    with pytest.raises(ValueError, match="1 answers"):
        search.record([])
    with pytest.raises(ValueError, match="less than 1 together"):
        Noise(0.6, 0.5)
