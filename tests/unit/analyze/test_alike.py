"""Which nodes of a large job are read: few of each kind, in numbers that compare as the kinds do; replicas whole or not at all."""

from __future__ import annotations

from itertools import product

import pytest

from unhang.analyze import alike
from unhang.analyze.alike import Chosen, OuterGroup, Told, choose, tell
from unhang.analyze.situation import Situation
from unhang.testing import make_case


def _job(nodes: int, odd: dict[int, bytes], ranks: int = 2, stages: int = 1) -> dict[str, Told]:
    """Nodes of a job in which the ranks at one place of all replicas are a group, and `stages` nodes are one replica."""
    found = {}
    for n in range(nodes):
        groups = [OuterGroup(b"world", nodes * ranks, ranks)]
        groups += [OuterGroup(b"over %d" % (n % stages * ranks + i), nodes // stages, 1) for i in range(ranks)]
        if stages > 1:
            groups += [OuterGroup(b"stages %d %d" % (n // stages, i), stages, 1) for i in range(ranks)]
        found[f"n{n}"] = Told(odd.get(n, b"usual"), tuple(range(n * ranks, (n + 1) * ranks)), tuple(groups))
    return found


def test_all_that_is_rare_is_read_and_of_the_rest_a_majority() -> None:
    chosen = choose(_job(1000, {7: b"late", 900: b"late", 5: b"dead"}))
    assert chosen == Chosen(
        tuple(f"n{n}" for n in (*(n for n in range(12) if n not in (5, 7)), 7, 900, 5)), True, (997, 2, 1)
    )


def test_a_job_of_few_nodes_is_read_whole() -> None:
    assert set(choose(_job(60, dict.fromkeys(range(30), b"other"))).nodes) == {f"n{n}" for n in range(60)}


@pytest.mark.parametrize("share", [2, 3, 5])
def test_large_kinds_compare_as_before(share: int) -> None:
    chosen = choose(_job(3000, {n: b"other" for n in range(3000) if n % share == 0}))
    other = sum(int(node[1:]) % share == 0 for node in chosen.nodes)
    usual = len(chosen.nodes) - other
    assert chosen.is_whole
    assert (usual > other) == (share > 2)
    assert (usual == other) == (share == 2)
    assert usual + other <= alike.MOST_NODES


def test_where_they_cannot_the_others_are_unknown() -> None:
    chosen = choose(_job(3000, {n: b"%d" % (n % 100) for n in range(3000)}))
    assert not chosen.is_whole
    assert len(chosen.nodes) == alike.MOST_NODES


def test_scaled_numbers_make_no_set_of_kinds_the_larger_one() -> None:
    sizes = [500, 300, 200]
    found = alike._scaled(sizes, 64)
    assert found is not None
    for a, b in product(range(8), repeat=2):
        if not a & b:
            before, after = (
                sum(of[i] for i in range(3) if a >> i & 1) - sum(of[i] for i in range(3) if b >> i & 1)
                for of in (sizes, found)
            )
            assert ((before > 0) - (before < 0)) == ((after > 0) - (after < 0))


def test_a_replica_is_read_whole() -> None:
    chosen = choose(_job(1024, {n: b"stage %d" % (n % 4) for n in range(1024)} | {41: b"late"}, stages=4))
    assert chosen.is_whole
    replicas = {int(node[1:]) // 4 for node in chosen.nodes}
    assert {int(node[1:]) for node in chosen.nodes} == {n for r in replicas for n in range(4 * r, 4 * r + 4)}
    assert 10 in replicas
    assert chosen.kinds == (255 * 4, 4)


def test_nodes_that_differ_in_a_group_over_replicas_are_of_two_kinds() -> None:
    told = _job(100, {})
    told["n3"] = told["n3"]._replace(groups=(*told["n3"].groups[:-1], OuterGroup(b"another", 50, 1)))
    assert choose(told).kinds == (99, 1)


def test_a_mark_is_of_where_ranks_stand_and_not_of_their_numbers() -> None:
    usual = ["all_reduce@main:3", "barrier@main:4 !"]
    case = make_case({0: usual, 1: usual, 2: usual, 3: usual, 4: ["all_reduce@main:3 !"], 5: usual}, world=6)
    s = Situation(case)
    marks = [tell(s, ranks).mark for ranks in ((0, 1), (2, 3), (4, 5))]
    assert marks[0] == marks[1] != marks[2]
