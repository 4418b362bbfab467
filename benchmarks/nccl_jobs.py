"""Draws jobs on NCCL with known truth, and counts how often the verdict on their dumps is right, abstains, or accuses wrongly.

A verdict is wrong where a finding that stands for itself names a rank that is not at fault, with confidence 0.5 or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ncclsim  # noqa: E402
from tests.dumps.test_random_jobs import InProcess  # noqa: E402

from unhang.diagnosis import judge_paths  # noqa: E402
from unhang.model import Diagnosis, Verdict  # noqa: E402
from unhang.read.dumps.reader import DumpReader  # noqa: E402

RIGHT, ABSTAINS, WRONG = "right", "abstains", "wrong"
UNSURE = 0.5


def diagnosed(job: ncclsim.Job) -> Diagnosis:
    """What we say of a job's dumps."""
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder))
        return judge_paths([Path(folder)], partial(DumpReader, use_cache=False, engine=InProcess())).diagnosis


def score(truth: ncclsim.Truth, said: Diagnosis) -> tuple[str, str]:
    """(right, abstains or wrong; why)."""
    failed = [f"{o.rule}: {o.reason}" for o in said.outcomes if o.verdict == Verdict.ERROR]
    if failed:
        return WRONG, failed[0]
    culprits = set(truth.culprits)
    roots = [f for f in said.findings if f.is_root] or list(said.findings[:1])
    for f in roots:
        if set(f.culprit_ranks) - culprits and f.confidence >= UNSURE:
            return WRONG, f"{f.rule} ({f.confidence:.2f}) accuses {sorted(f.culprit_ranks)}: {f.title}"
    named = set(roots[0].culprit_ranks) if roots else set()
    rule = f"{roots[0].rule} {roots[0].title}" if roots else "nothing"
    if truth.kind == "healthy":
        return (RIGHT if not roots else ABSTAINS), rule
    if not culprits:
        return (RIGHT if roots and not named else ABSTAINS), rule
    return (RIGHT if named and named <= culprits else ABSTAINS), f"{rule}: {sorted(named)}"


def one(seed: int, fault: str = "") -> tuple[int, ncclsim.Truth, str, str]:
    """(seed, the truth, the score, why)."""
    job = ncclsim.random_job(seed, fault)
    return seed, job.truth, *score(job.truth, diagnosed(job))


def table(counts: Counter[tuple[str, bool, str]]) -> list[str]:
    """Lines: per fault how many are right, abstain or are wrong, of those that the dumps can tell and of the others."""
    lines = [f"{'fault':>20} {'tells':>5} {'jobs':>5} {RIGHT:>6} {ABSTAINS:>9} {WRONG:>6}"]
    for kind, tells in sorted({(k, t) for k, t, _ in counts}):
        of = [counts[kind, tells, s] for s in (RIGHT, ABSTAINS, WRONG)]
        lines.append(f"{kind:>20} {'yes' if tells else 'no':>5} {sum(of):>5} {of[0]:>6} {of[1]:>9} {of[2]:>6}")
    for tells in (True, False):
        of = [
            sum(n for (_, t, s), n in counts.items() if t == tells and s == name) for name in (RIGHT, ABSTAINS, WRONG)
        ]
        share = f"  {of[0] / max(1, sum(of)):.1%} right"
        lines.append(f"{'all':>20} {'yes' if tells else 'no':>5} {sum(of):>5} {of[0]:>6} {of[1]:>9} {of[2]:>6}{share}")
    return lines


def main() -> int:
    """Prints the wrong ones and a table; the exit code is 1 if any accusation is wrong."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--fault", default="", choices=["", *ncclsim.FAULTS])
    options.add_argument("--abstentions", action="store_true", help="print these too")
    options.add_argument("--save", type=Path, help="write the counts as JSON")
    given = options.parse_args()
    counts: Counter[tuple[str, bool, str]] = Counter()
    seeds = range(given.first, given.first + given.jobs)
    with get_context("spawn").Pool(given.processes) as pool:
        for seed, truth, found, why in pool.imap(partial(one, fault=given.fault), seeds, chunksize=10):
            counts[truth.kind, truth.tells, found] += 1
            if found == WRONG or (given.abstentions and found == ABSTAINS and truth.tells):
                print(f"seed {seed}: {found}: {truth.kind} {list(truth.culprits)} of {truth.group}: {why}", flush=True)
    print("\n".join(table(counts)))
    if given.save:
        rows = [{"fault": k, "tells": t, "score": s, "jobs": n} for (k, t, s), n in sorted(counts.items())]
        given.save.write_text(json.dumps({"first": given.first, "jobs": given.jobs, "counts": rows}, indent=1) + "\n")
    return int(any(s == WRONG for _, _, s in counts))


if __name__ == "__main__":
    raise SystemExit(main())
