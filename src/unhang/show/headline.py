"""The answer in one line, the same in every output."""

from __future__ import annotations

from unhang.model import Case, Diagnosis, Finding, Outcome, Verdict, WaitsFor
from unhang.show.rank_sets import name_ranks


def _with_place(finding: Finding) -> str:
    place = finding.location
    if place is None:
        return finding.title
    short = f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
    return finding.title if short in finding.title else f"{finding.title}, at {short} in {place.function}()"


def _without_finding(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    code = diagnosis.job.exit_code
    ended = "" if code is None else f" (exit code {code})"
    match diagnosis.outcome:
        case Outcome.CLEAN:
            count = len(case.world)
            who = f"{count} rank{'' if count == 1 else 's'}" if count else "the job"
            return f"{who} ran to the end{ended}: nothing wrong found" if ended else f"{who}: nothing wrong found"
        case Outcome.HANG:
            waiting = diagnosis.hang.waiting_ranks if diagnosis.hang else waits.waiting
            verb = "makes" if len(waiting) == 1 else "make"
            who = name_ranks(waiting) if waiting else "the ranks"
            return f"{who} {verb} no progress; the evidence does not suffice to name a cause"
        case Outcome.CRASH:
            return f"the job failed{ended}; the evidence does not suffice to name a cause"
        case Outcome.STRAGGLER:
            return "a rank is late, but makes progress; the evidence does not suffice to name a cause"
        case _:
            return "the evidence does not suffice to judge what became of the job"


def headline(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """What happened: the title of the first finding with its place, or what is known without one."""
    if diagnosis.findings:
        return _with_place(diagnosis.findings[0])
    return _without_finding(diagnosis, case, waits)


def undecided(diagnosis: Diagnosis) -> list[tuple[str, tuple[str, ...]]]:
    """(what was missing, rules that could not judge without it), the one that would help most rules first."""
    rules: dict[str, list[str]] = {}
    for outcome in diagnosis.outcomes:
        if outcome.verdict is Verdict.SKIPPED and outcome.reason:
            rules.setdefault(outcome.reason, []).append(outcome.rule)
    return sorted(((reason, tuple(r)) for reason, r in rules.items()), key=lambda pair: (-len(pair[1]), pair[0]))
