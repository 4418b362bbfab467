"""Which nodes and links are bad, found by tests of groups: `Search` beside rounds of pairs and binary search, simulated.

Every test of a group is simulated: it fails if the group holds a bad node or both ends of a bad link, and a test answers wrongly
with the probability of the column `noise`. Rounds count, because disjoint groups run at the same time; then tests per node.

The other two as they are used: **pairs**: two rounds of pairs with different partners, a node that failed in both is bad.
**halving**: the half that fails is halved, the last one is paired with a node that was in a good half; then again without the bad
one. Both repeat every test 3 (1 %) or 5 (5 %) times and take the majority. Neither knows links.

Usage: python benchmarks/group_testing.py [--nodes 16 128 1024 16384] [--runs 200] [--seconds 0.5] [--save]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from unhang.check.links.evidence import Answer, Group, Noise, Pair
from unhang.check.links.search import Search

RESULTS = Path(__file__).parent / "results" / "group_testing.json"
FAULTS = [(0, 0), (1, 0), (2, 0), (4, 0), (8, 0), (0, 1), (0, 2), (1, 1), (4, 2)]
FAULTS_OF_MANY = [(0, 0), (1, 0), (8, 0), (0, 1), (4, 2)]
MANY = 10_000
NOISES = (0.0, 0.01, 0.05)
REPEATS = {0.0: 1, 0.01: 3, 0.05: 5}


class Cluster:
    """Answers tests, and counts rounds and tests of nodes. `miss`: of a test with a fault in it, `false_alarm`: of one without."""

    def __init__(self, n: int, nodes: int, links: int, false_alarm: float, miss: float, seed: int) -> None:
        self.n, self.random = n, random.Random(seed)
        self.false_alarm, self.miss = false_alarm, miss
        chosen = self.random.sample(range(n), nodes + 2 * links)
        self.bad, ends = set(chosen[:nodes]), chosen[nodes:]
        self.links: set[Pair] = {(min(p), max(p)) for p in zip(ends[::2], ends[1::2], strict=True)}
        self._place_N = np.zeros(n, dtype=np.int64)
        self.rounds = self.node_tests = 0

    def test(self, groups: Sequence[Group], repeats: int = 1) -> list[bool]:
        """Whether each group fails, by the majority of the repeats."""
        self._place_N[:] = -1
        for number, group in enumerate(groups):
            self._place_N[list(group)] = number
        faulty = {int(self._place_N[m]) for m in self.bad}
        faulty |= {int(self._place_N[a]) for a, b in self.links if self._place_N[a] == self._place_N[b]}
        self.rounds += repeats
        self.node_tests += repeats * sum(map(len, groups))
        return [2 * sum(self._fails(i in faulty) for _ in range(repeats)) > repeats for i in range(len(groups))]

    def _fails(self, is_faulty: bool) -> bool:
        if is_faulty:
            return not (self.miss and self.random.random() < self.miss)
        return bool(self.false_alarm) and self.random.random() < self.false_alarm


Found = tuple[set[int], set[Pair], float]
"""Nodes and links that a method accuses, and the seconds of CPU that its planning took."""


def by_search(cluster: Cluster, noise: Noise, links: int, seed: int) -> Found:
    """Ours."""
    began = time.process_time()
    search, simulated_s = Search(cluster.n, max_bad=8, max_bad_links=links, noise=noise, seed=seed), 0.0
    while groups := search.next_round():
        asked = time.process_time()
        answers = [Answer.BAD if fails else Answer.OK for fails in cluster.test(groups)]
        simulated_s += time.process_time() - asked
        search.record(answers)
    verdict = search.verdict
    return set(verdict.bad_members), set(verdict.bad_links), time.process_time() - began - simulated_s


def by_pairs(cluster: Cluster, repeats: int) -> Found:
    """Two rounds of pairs: bad is who failed in both. An odd one joins the last pair."""
    failed = []
    order = list(range(cluster.n))
    cluster.random.shuffle(order)
    for shifted in (order, order[1:] + order[:1]):
        groups = [tuple(shifted[i : i + 2]) for i in range(0, cluster.n - 1, 2)]
        if cluster.n % 2:
            groups[-1] += (shifted[-1],)
        fails = cluster.test(groups, repeats)
        failed.append({m for group, is_bad in zip(groups, fails, strict=True) if is_bad for m in group})
    return failed[0] & failed[1], set(), 0.0


def by_halving(cluster: Cluster, repeats: int) -> Found:
    """Binary search, again and again until the rest is good, or until no half fails; at most 9 times."""
    found: set[int] = set()
    left = list(range(cluster.n))
    for _ in range(9):
        if len(left) < 2 or not cluster.test([tuple(left)], repeats)[0]:
            break
        suspects, good = left, list[int]()
        while len(suspects) > 2:
            halves = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            fails = cluster.test([tuple(half) for half in halves if len(half) > 1], repeats)
            at = len(halves) - len(fails)  # a half of one node is not tested
            bad = [half for half, is_bad in zip(halves[at:], fails, strict=True) if is_bad] or (
                [halves[0]] if at else []
            )
            if not bad:
                return found, set(), 0.0  # neither half fails: a link between them, or chance
            good += [m for half, is_bad in zip(halves[at:], fails, strict=True) if not is_bad for m in half]
            suspects = bad[0]
        if len(good) < len(suspects):
            break
        pairs = [(s, g) for s, g in zip(suspects, good, strict=False)]
        culprits = {pair[0] for pair, is_bad in zip(pairs, cluster.test(pairs, repeats), strict=True) if is_bad}
        if not culprits:
            break
        found |= culprits
        left = [m for m in left if m not in culprits]
    return found, set(), 0.0


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not n:
        return 0.0, 1.0
    share, wide = hits / n, z * z / n
    middle, half = share + wide / 2, z * math.sqrt(share * (1 - share) / n + wide / (4 * n))
    return max(0.0, (middle - half) / (1 + wide)), min(1.0, (middle + half) / (1 + wide))


@dataclass
class Row:
    """One method on one kind of case. `exact`: runs in which all faults and nothing else was accused."""

    method: str
    n: int
    bad_nodes: int
    bad_links: int
    noise: str
    runs: int
    exact: int
    runs_with_false: int
    false_accusations: int
    rounds: float
    rounds_p95: float
    tests_per_node: float
    cpu_s: float


def row(method: str, n: int, faults: tuple[int, int], noise: str, found: Iterable[tuple[Cluster, Found]]) -> Row:
    """Sums up the runs."""
    exact = with_false = false = 0
    clusters, cpu_s = [], []
    for cluster, (nodes, links, seconds) in found:
        exact += nodes == cluster.bad and links == cluster.links
        wrong = len(nodes - cluster.bad) + len(links - cluster.links)
        with_false, false = with_false + bool(wrong), false + wrong
        clusters.append(cluster)
        cpu_s.append(seconds)
    rounds = sorted(c.rounds for c in clusters)
    return Row(
        method,
        n,
        *faults,
        noise,
        len(clusters),
        exact,
        with_false,
        false,
        statistics.median(rounds),
        rounds[int(0.95 * (len(rounds) - 1))],
        statistics.mean(c.node_tests for c in clusters) / n,
        statistics.median(cpu_s),
    )


def runs(
    n: int,
    faults: tuple[int, int],
    rates: tuple[float, float],
    method: Callable[[Cluster, int], Found],
    most: int,
    limit_s: float,
) -> Iterable[tuple[Cluster, Found]]:
    """Runs until there are enough or the time is up, at least five; the same clusters for every method."""
    began = time.process_time()
    for seed in range(most):
        if seed >= 5 and time.process_time() - began > limit_s:
            return
        cluster = Cluster(n, *faults, *rates, seed)
        yield cluster, method(cluster, seed)


def table(sizes: Sequence[int], most: int, limit_s: float) -> list[Row]:
    """All rows, printed as they come."""
    rows = []
    print(f"{'method':10}{'n':>6} {'bad':>5} {'noise':>9} {'runs':>5} {'exact':>7}  "
          f"{'false accusations: runs, 95 % interval':40}{'rounds (p95)':>13} {'tests/node':>11} {'CPU s':>7}")  # fmt: skip
    for n in sizes:
        for faults in FAULTS if n < MANY else FAULTS_OF_MANY:
            if faults[0] + 2 * faults[1] > n // 3:
                continue
            for rate in NOISES:
                noise, repeats = Noise(rate, rate), REPEATS[rate]
                methods: dict[str, Callable[[Cluster, int], Found]] = {
                    "search": lambda c, seed, noise=noise: by_search(c, noise, 2, seed),  # type: ignore[misc]
                    "pairs": lambda c, _, repeats=repeats: by_pairs(c, repeats),  # type: ignore[misc]
                    "halving": lambda c, _, repeats=repeats: by_halving(c, repeats),  # type: ignore[misc]
                }
                if not faults[1]:
                    methods["search -l"] = lambda c, seed, noise=noise: by_search(c, noise, 0, seed)  # type: ignore[misc]
                for name, method in methods.items():
                    found = runs(n, faults, (rate, rate), method, most, limit_s)
                    rows.append(row(name, n, faults, f"{rate:.0%}", found))
                    show(rows[-1])
    return rows


def hard(most: int, limit_s: float) -> list[Row]:
    """Faults that show in every second test only, and answers that are worse than the search was told."""
    rows = []
    for n in (128, 1024):
        cases = {
            "half": ((0.0, 0.5), Noise(0.0, 0.5)),
            "half, 1%": ((0.01, 0.5), Noise(0.01, 0.5)),
            "5% as 1%": ((0.05, 0.05), Noise(0.01, 0.01)),
            "5% as 0%": ((0.05, 0.05), Noise(0.0, 0.0)),
        }
        for name, (rates, told) in cases.items():
            for links in (0, 2):
                found = runs(n, (2, 0), rates, lambda c, s, t=told, k=links: by_search(c, t, k, s), most, limit_s)  # type: ignore[misc]
                rows.append(row("search" if links else "search -l", n, (2, 0), name, found))
                show(rows[-1])
    return rows


def show(r: Row) -> None:
    """Prints a row."""
    low, high = wilson(r.runs_with_false, r.runs)
    false = f"{r.runs_with_false:4} ({r.false_accusations} accused)  {low:.2%} to {high:.2%}"
    print(f"{r.method:10}{r.n:6} {r.bad_nodes:2}+{r.bad_links:<2} {r.noise:>9} {r.runs:5} {r.exact / r.runs:7.1%}  "
          f"{false:40}{r.rounds:6.0f} ({r.rounds_p95:.0f}) {r.tests_per_node:11.1f} {r.cpu_s:7.2f}", flush=True)  # fmt: skip


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--nodes", type=int, nargs="+", default=[16, 128, 1024, 16384])
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--seconds", type=float, default=0.5, help="CPU time per row, after five runs")
    options.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    given = options.parse_args()
    print("bad: nodes+links. search: links may be bad; search -l: links are known to be good.")
    rows = table(given.nodes, given.runs, given.seconds)
    print("\nfaults that show in half of the tests, and noise that the search was not told of:")
    rows += hard(given.runs, given.seconds)
    for name in ("search", "search -l", "pairs", "halving"):
        mine = [r for r in rows if r.method == name and " as " not in r.noise]
        total, false = sum(r.runs for r in mine), sum(r.runs_with_false for r in mine)
        low, high = wilson(false, total)
        exact = sum(r.exact for r in mine) / max(total, 1)
        print(f"{name:10} {total} runs: exact {exact:.1%}, {false} with a false accusation, {low:.3%} to {high:.3%}")
    if given.save:
        RESULTS.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
