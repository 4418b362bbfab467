"""Public incidents with an established cause: how often the first finding names it, from the log alone, given as a file.

Prints the confusion table, and for each rule on how many incidents it spoke: a rule that speaks on one file only may be
written for the file instead of the failure, and is listed as such.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unhang.diagnosis import diagnose
from unhang.model import Diagnosis

NAMES = ("job.log", "slurm-4711.out", "train.err", "stdout.txt", "log")
RESULTS = Path(__file__).parent / "results" / "blind_rounds.json"
HEALTHY = "none"  # the truth of a log in which nothing is wrong
FOLDER = Path(__file__).parents[1] / "tests" / "incidents"


@dataclass(frozen=True)
class Judged:
    """One incident and what was said of it."""

    name: str
    truth: str
    culprits: tuple[int, ...] | None
    is_scored: bool
    must_abstain: bool
    diagnosis: Diagnosis
    also: tuple[str, ...] = ()  # other causes that whoever wrote the truth down takes for as good

    @property
    def cause(self) -> str:
        """The cause of the first finding; "unknown" where there is none."""
        return self.diagnosis.findings[0].cause if self.diagnosis.findings else "unknown"

    @property
    def rule(self) -> str:
        """The rule of the first finding."""
        return self.diagnosis.findings[0].rule if self.diagnosis.findings else ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits of the first finding."""
        return self.diagnosis.findings[0].culprit_ranks if self.diagnosis.findings else ()


def diagnosed(log: str, name: str = NAMES[0]) -> Diagnosis:
    """What `unhang diagnose FILE` says of a log in a file of this name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(log, errors="surrogateescape")
        return diagnose(path)


def judged(folder: Path = FOLDER) -> list[Judged]:
    """All incidents of a folder, each as a log with one of the names that logs have."""
    found = []
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        incident = json.loads(path.read_text())
        truth = incident["truth"]
        ranks = truth["culprit_ranks"]
        found.append(
            Judged(
                incident["id"],
                truth["cause"],
                tuple(sorted(ranks)) if ranks else None,
                bool(incident["scored"]),
                bool(incident["abstain"]),
                diagnosed(incident["log"], NAMES[number % len(NAMES)]),
                tuple(truth.get("also") or ()),
            )
        )
    return found


def share(hits: int, of: int) -> str:
    """`60 of 70 (85.7 %)`."""
    return f"{hits} of {of} ({hits / max(1, of):.1%})"


def summary(all_judged: Sequence[Judged]) -> dict[str, tuple[int, int]]:
    """Name of the measure -> (right, of)."""
    healthy = [j for j in all_judged if j.truth == HEALTHY]
    scored = [j for j in all_judged if j.is_scored and j.truth != HEALTHY]
    named = [j for j in scored if j.culprits is not None]
    abstain = [j for j in all_judged if j.must_abstain]
    others = [j for j in all_judged if not j.is_scored and not j.must_abstain and j.truth != HEALTHY]
    return {
        "first cause right": (sum(j.cause == j.truth for j in scored), len(scored)),
        "first cause right, or as good": (sum(j.cause in (j.truth, *j.also) for j in scored), len(scored)),
        "another cause named": (sum(j.cause not in ("unknown", j.truth) for j in scored), len(scored)),
        "culprit ranks right": (sum(j.ranks == j.culprits for j in named), len(named)),
        "abstains where nothing was established": (sum(j.cause == "unknown" for j in abstain), len(abstain)),
        "not to be told from the log: right": (sum(j.cause == j.truth for j in others), len(others)),
        "not to be told from the log: wrong cause named": (
            sum(j.cause not in ("unknown", j.truth) for j in others),
            len(others),
        ),
        "healthy logs accused": (sum(j.cause != "unknown" for j in healthy), len(healthy)),
        "healthy logs clean, or going on to their last line": (
            sum(j.diagnosis.exit_code == 0 for j in healthy),
            len(healthy),
        ),
    }


def keep(name: str, found: Sequence[Judged]) -> None:
    """Writes the score of a round of incidents that nobody had seen beside those of the earlier rounds."""
    rounds = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wrong = {j.name: [j.truth, j.cause, j.rule] for j in found if j.cause not in (j.truth, "unknown")}
    silent = {j.name: j.truth for j in found if j.is_scored and j.cause == "unknown" and j.truth != HEALTHY}
    score = {measure: list(hits) for measure, hits in summary(found).items()}
    rounds[name] = {"incidents": len(found), "score": score, "wrong": wrong, "silent": silent}
    RESULTS.write_text(json.dumps(rounds, indent=1) + "\n")


def main() -> int:
    """Prints the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    options.add_argument("--wrong", action="store_true", help="list every incident with a wrong answer")
    options.add_argument(
        "--blind", metavar="ROUND", help="keep the score in results/blind_rounds.json: before any change!"
    )
    given = options.parse_args()
    found = judged(given.folder)
    if given.blind:
        keep(given.blind, found)
    if given.wrong:
        for j in found:
            bad_ranks = j.culprits is not None and j.ranks != j.culprits
            if j.cause != j.truth or (j.is_scored and bad_ranks):
                kind = "scored" if j.is_scored else "abstain" if j.must_abstain else "open"
                print(f"{j.name} {kind:8} truth {j.truth} {j.culprits}  said {j.cause} {j.ranks} [{j.rule}]")
        print()
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for j in found:
        if j.is_scored or j.must_abstain:
            confusion[j.truth][j.cause] += 1
    print(f"{'cause':26} right  of  said instead")
    for truth, said in sorted(confusion.items()):
        others = ", ".join(f"{cause} {n}" for cause, n in said.most_common() if cause != truth)
        print(f"{truth:26} {said[truth]:>5} {said.total():>3}  {others}")
    spoke = Counter(o.rule for j in found for o in j.diagnosis.outcomes if o.verdict == "fail")
    print("\nrules that speak on one incident only (leave that one out, and nothing here shows that they work):")
    print("  " + ", ".join(sorted(rule for rule, n in spoke.items() if n == 1)))
    single = {rule for rule, n in spoke.items() if n == 1}
    scored = [j for j in found if j.is_scored]
    print(
        "first cause right without the answers of such rules: "
        + share(sum(j.cause == j.truth and j.rule not in single for j in scored), len(scored))
    )
    print()
    for name, (hits, of) in summary(found).items():
        print(f"{name:50} {share(hits, of)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
