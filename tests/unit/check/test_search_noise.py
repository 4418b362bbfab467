"""Group testing when answers are wrong at times, or are measured times: found nevertheless, and nobody innocent accused."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.unit.check.test_search import answer
from unhang.check.links.evidence import Answer, Group, Noise, Verdict, answers_from_times
from unhang.check.links.search import Search

BAD, LINKS = {3, 17}, [(8, 40)]


def run(search: Search, false_alarm: float, miss: float, seed: int, links: Sequence[tuple[int, int]] = ()) -> Verdict:
    random = Random(seed)
    while groups := search.next_round():
        answers = []
        for group in groups:
            true = answer(group, BAD, links)
            is_wrong = random.random() < (false_alarm if true is Answer.OK else miss)
            answers.append({Answer.OK: Answer.BAD, Answer.BAD: Answer.OK}[true] if is_wrong else true)
        search.record(answers)
    return search.verdict


@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_members_and_links_are_found_in_noise(rate: float) -> None:
    exact = 0
    for seed in range(25):
        verdict = run(Search(64, noise=Noise(rate, rate), seed=seed), rate, rate, seed, LINKS)
        assert set(verdict.bad_members) <= BAD
        assert set(verdict.bad_links) <= set(LINKS)
        exact += (set(verdict.bad_members), list(verdict.bad_links)) == (BAD, LINKS)
    assert exact >= 23


def test_a_fault_that_shows_in_every_second_test() -> None:
    exact = 0
    for seed in range(20):
        verdict = run(Search(64, max_bad_links=0, noise=Noise(0.0, 0.5), seed=seed), 0.0, 0.5, seed)
        assert set(verdict.bad_members) <= BAD
        exact += set(verdict.bad_members) == BAD
    assert exact >= 18


@pytest.mark.parametrize("links", [0, 2])
def test_more_false_alarms_than_told_are_noticed(links: int) -> None:
    accused = 0
    for seed in range(10):
        search = Search(512, max_bad_links=links, noise=Noise(0.001, 0.001), seed=seed)
        verdict = run(search, 0.05, 0.05, seed)
        accused += bool(set(verdict.bad_members) - BAD) or bool(verdict.bad_links)
        assert verdict.noise.false_alarm > 0.02
    assert accused <= 1


def test_too_few_rounds_leave_it_undecided() -> None:
    verdict = run(Search(64, noise=Noise(0.05, 0.05), max_rounds=6), 0.05, 0.05, 1)
    assert verdict.accused == ()
    assert {m for u in verdict.undecided for m in u.members} >= BAD
    assert not verdict.is_complete


def test_times_are_judged_by_the_groups_of_their_size() -> None:
    pairs: list[Group] = [(i, i + 1) for i in range(0, 20, 2)]
    times = [1.0, 1.02, 0.98, 1.01, 1.6, 0.99, 1.0, 1.03, None, 1.0]
    answers = answers_from_times([*pairs, (30, 31, 32)], [*times, 9.0])
    assert answers == (*[Answer.OK] * 4, Answer.BAD, *[Answer.OK] * 3, Answer.HUNG, Answer.OK, Answer.MISSING)
    spread = answers_from_times(pairs, [1.0, 1.5, 0.7, 1.3, 1.6, 0.8, 1.0, 1.2, 0.6, 1.4])
    assert set(spread) == {Answer.OK}, "times that differ much anyway tell nothing of 1.6"


def test_few_groups_are_not_judged() -> None:
    assert answers_from_times([(0, 1, 2), (3, 4, 5)], [1.0, 5.0]) == (Answer.MISSING, Answer.MISSING)
