"""What one node sees of a job accuses no rank of another node, and proves nothing by its silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.analyze.test_no_false_accusation import (
    EQUAL,
    LAST,
    PLACES,
    SEEDS,
    SETTINGS,
    Program,
    inject,
    places_for,
    programs,
    simulate,
)
from unhang.analyze.situation import Situation
from unhang.model import Case
from unhang.rules.registry import judge


def seen_by(case: Case, ranks: range) -> Case:
    """What an `unhang run` that started these ranks knows of the job."""
    table = case.calls
    rows = np.isin(table["rank"], list(ranks))
    return replace(
        case,
        ranks={r: e for r, e in case.ranks.items() if r in ranks},
        calls=replace(table, columns={name: column[rows] for name, column in table.columns.items()}),
        out_of_sight=tuple(r for r in case.world if r not in ranks),
    )


def node_of(program: Program, first: int, size: int) -> range:
    """Some ranks side by side, at least one of the program's and not all of them."""
    count = 1 + size % (program.world - 1)
    start = first % (program.world - count + 1)
    return range(start, start + count)


@SETTINGS
@given(programs(), st.booleans(), SEEDS, st.integers(0, 200), PLACES, PLACES, st.booleans())
def test_nothing_is_proven_or_said_of_a_rank_that_is_not_seen(
    program: Program, eager: bool, seed: int, most: int, first: int, size: int, with_paths: bool
) -> None:
    simulation = simulate(program, eager).run(seed, most)
    case = seen_by(simulation.case(with_paths=with_paths, hang="suspected"), node_of(program, first, size))
    situation = Situation(case)
    assert situation.proven == ()
    assert situation.divergence is None
    for finding in judge(situation).findings:
        assert set(finding.culprit_ranks).isdisjoint(case.out_of_sight), finding
        assert finding.cause != "rank-crashed-earlier", finding


@SETTINGS
@given(
    programs(least_world=4, subgroups=0, p2p=False, last=LAST),
    st.sampled_from(("skip", "add", "reorder", "resize")),
    SEEDS,
    PLACES,
    PLACES,
    PLACES,
    st.sampled_from(EQUAL),
)
def test_a_rank_that_differs_elsewhere_has_none_named_here(
    program: Program, fault: str, seed: int, place: int, first: int, size: int, op: str
) -> None:
    node = node_of(program, first, size)
    culprit = next(r for r in range(program.world) if r not in node)
    trace = program.trace(culprit)
    if not (places := places_for(program, trace, fault)):
        return
    changed = inject(trace, fault, places[place % len(places)], op, "16")
    simulation = simulate(program, eager=False, faulty={culprit: changed}).run(seed)
    if simulation.is_over:
        return
    for finding in judge(seen_by(simulation.case(hang="suspected"), node)).findings:
        assert finding.culprit_ranks == (), finding
