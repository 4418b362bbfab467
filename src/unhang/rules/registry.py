"""Finds the rules, judges a case with all of them, and puts the findings in order: cause first; those that say the same become one."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeVar

import unhang.rules
from unhang.analyze.lines.log_progress import Stall, slow_starts, stall
from unhang.analyze.program.callpath import scripts_of
from unhang.analyze.program.trees import judge_program_of
from unhang.analyze.program.values import disagreements, is_asked, is_number
from unhang.analyze.situation import Situation
from unhang.model import (
    Attempt,
    Case,
    Diagnosis,
    Finding,
    Fix,
    HangObservation,
    Inventory,
    NextStep,
    Outcome,
    RuleOutcome,
    Verdict,
)
from unhang.rules import wording as w
from unhang.rules.advice import call_first
from unhang.rules.base import RULES, Names, Rule
from unhang.rules.next_steps import next_steps

_MOST_SAID = 3
_MOST_VALUES = 6
_MANY = {"is": "are", "was": "were", "has": "have", "waits": "wait", "comes": "come"}
T = TypeVar("T")


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those of one rule that are independent, equally sure and of one cause as one; none twice."""
    groups: list[list[Finding]] = []
    for finding in {(f.rule, f.title, f.culprit_ranks): f for f in findings}.values():
        group = next((g for g in groups if all(_are_one(finding, f) for f in g)), [])
        group.append(finding)
        groups += [group] if len(group) == 1 else []
    return [_one(group) if len(group) > 1 else group[0] for group in groups]


def _are_one(a: Finding, b: Finding) -> bool:
    """Whether both say the same, of different ranks of which none holds the other up."""
    mine, theirs = set(a.culprit_ranks), set(b.culprit_ranks)
    is_same = (a.rule, a.cause, a.confidence, a.consequence_of) == (b.rule, b.cause, b.confidence, None)
    is_apart = mine.isdisjoint({*theirs, *b.victim_ranks}) and theirs.isdisjoint(a.victim_ranks)
    return is_same and bool(mine) and bool(theirs) and is_apart


def _one(group: Sequence[Finding]) -> Finding:
    first = group[0]
    culprits = tuple(sorted(r for f in group for r in f.culprit_ranks))
    return replace(
        first,
        title=_title(group, culprits),
        culprit_ranks=culprits,
        victim_ranks=tuple(sorted({r for f in group for r in f.victim_ranks})),
        because=" ".join(dict.fromkeys(f.because for f in group[:_MOST_SAID])),
        process_group=_shared(group, lambda f: f.process_group),
        collective=_shared(group, lambda f: f.collective),
        location=_shared(group, lambda f: f.location),
        condition=_shared(group, lambda f: f.condition),
        evidence=tuple(dict.fromkeys(line for f in group for line in f.evidence)),
        fixes=_fixes(group, culprits),
        is_root=any(f.is_root for f in group),
    )


def _shared(group: Sequence[Finding], part: Callable[[Finding], T]) -> T | None:
    first = part(group[0])
    return first if all(part(f) == first for f in group) else None


def _said(finding: Finding) -> str:
    """The title without its subject."""
    return finding.title.removeprefix(w.name_ranks(finding.culprit_ranks))


def _title(group: Sequence[Finding], culprits: Sequence[int]) -> str:
    """One subject for what is said of all, with the one word in which it differs named for each; else one after the other."""
    said = [_said(f).split(" ") for f in group]
    is_about_them = all(s != f.title for s, f in zip(map(_said, group), group, strict=True))
    differing = [i for i, words in enumerate(zip(*said, strict=False)) if len(set(words)) > 1]
    is_whole = all(s[i].count("(") == s[i].count(")") for s in said for i in differing if i < len(s))
    if not is_about_them or not is_whole or len({len(s) for s in said}) > 1 or len(differing) > 1:
        more = f"; and {len(group) - _MOST_SAID} more like these" if len(group) > _MOST_SAID else ""
        return "; ".join(f.title for f in group[:_MOST_SAID]) + more
    words = [
        "",
        *(_MANY.get(word, word) for word in said[0][1:2]),
        *("their" if x == "its" else x for x in said[0][2:]),
    ]
    for i in differing:
        each = list(dict.fromkeys(s[i].rstrip(",") for s in said))
        shown = [*each[:_MOST_SAID], f"{len(each) - _MOST_SAID} more"] if len(each) > _MOST_SAID else each
        words[i] = ", ".join(shown[:-1]) + f" and {shown[-1]}" + ("," if said[0][i].endswith(",") else "")
    return w.name_ranks(culprits) + " ".join(words)


def _fixes(group: Sequence[Finding], culprits: Sequence[int]) -> tuple[Fix, ...]:
    """The fixes of all, those that do the same once."""
    fixes: dict[object, Fix] = {}
    for finding in group:
        name = re.compile(re.escape(w.name_ranks(finding.culprit_ranks)) + r"\b")
        for fix in finding.fixes:
            whole = replace(fix, title=name.sub(w.name_ranks(culprits), fix.title))
            fixes.setdefault((fix.patch, fix.advice, fix.command, fix.setting), whole)
    return tuple(fixes.values())


MACHINE = "unhang.rules.machine"  # the rules on readings, of which none has a verdict where nothing was read
CANNOT_RESTART, _MOST_QUOTED = "stale-store", 2
_BY_LOOKS, _LIKELY = 0.8, 0.5  # several looks from outside at a job that runs prove nothing
_LATE = {Names.MESSAGE: 1, Names.NOTHING: 2}  # rules that are asked after the others, in this order
_OF_REMARK = {v: Verdict.PASS if v is Verdict.FAIL else v for v in Verdict}  # nothing is wrong because of one
NO_RULES = "unhang.rules.env"  # what a rule judges settings with, and loads when it needs it


class Loaded(NamedTuple):
    """Every rule, ordered by id, and one line for each module that cannot be loaded: it costs its own rules alone."""

    rules: tuple[Rule, ...]
    broken: tuple[str, ...]


def all_rules() -> tuple[Rule, ...]:
    """Every rule, ordered by id."""
    return load_rules().rules


@cache
def load_rules(with_readings: bool = True, /) -> Loaded:
    """The rules, found by their folder; without those on readings, which are most, nothing of their modules is imported."""
    broken: list[str] = []
    for folder in pkgutil.iter_modules(unhang.rules.__path__, f"{unhang.rules.__name__}."):
        is_wanted = folder.ispkg and folder.name != NO_RULES and (with_readings or folder.name != MACHINE)
        if is_wanted and _is_imported(folder.name, broken):
            for module in pkgutil.iter_modules(sys.modules[folder.name].__path__, f"{folder.name}."):
                _is_imported(module.name, broken)
    whole = [r for r in RULES.values() if r.find.__module__ in sys.modules]  # else its import has failed
    chosen = [r for r in whole if with_readings or not r.reads]
    return Loaded(tuple(sorted(chosen, key=lambda r: r.id)), tuple(broken))


def _is_imported(name: str, broken: list[str]) -> bool:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a file put beside the others may do anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        broken.append(f"the module of rules {name} cannot be loaded and was not asked ({why})")
        return False
    return True


def _judge_one(rule: Rule, s: Situation) -> tuple[RuleOutcome, list[Finding]]:
    missing = rule.missing(s.case)
    if missing:
        return RuleOutcome(rule.id, Verdict.SKIPPED, missing), []
    try:
        found = list(rule.check(s))
    except Exception as error:  # noqa: BLE001  one faulty rule must not cost the verdict of the others
        return RuleOutcome(rule.id, Verdict.ERROR, f"{type(error).__name__}: {error}"), []
    if found:
        return RuleOutcome(rule.id, Verdict.FAIL, found[0].title), found
    return RuleOutcome(rule.id, Verdict.PASS), []


def _ordered(findings: Iterable[Finding], names: Mapping[str, Names], independent: bool) -> tuple[Finding, ...]:
    """First what names most, then what is most certain: a cause that is nobody's, and no more than likely, names no more than who is surely missing.

    The first is the root; the others follow from it, unless they are faults of their own.
    """
    own = ((max(names[f.rule], Names.FAILURE * (f.confidence < _LIKELY and not f.culprit_ranks)), f) for f in findings)
    ordered = [f for _, f in sorted(own, key=lambda x: (x[0], -x[1].confidence, x[1].rule))]
    ordered = ordered if independent else merged(ordered)
    numbered = [replace(f, id=f"F{i + 1}") for i, f in enumerate(ordered)]
    return tuple(
        replace(f, consequence_of="F1") if i and f.consequence_of is None and not (f.is_root or independent) else f
        for i, f in enumerate(numbered)
    )


def _asked_first(s: Situation, finding: Finding) -> Finding:
    """The same with the one repair of a test in which a call with all ranks stands behind `or` or `and`: it is not made where what stands before it decides."""
    d, at = s.divergence, finding.location
    if d is None or at is None or finding.cause not in ("code-divergence", "uneven-inputs"):
        return finding
    for frames in (call.frames or () for call in (d.odd_call, d.reference_call)):
        inner = next((i for i, f in enumerate(frames) if (f.file, f.line) == (at.file, at.line)), 0)
        fix = call_first(frames[inner], frames[inner - 1].function) if inner else None
        if fix is not None:
            return replace(finding, fixes=(fix, *(f for f in finding.fixes if not f.helps)))
    return finding


def _with_values(s: Situation, finding: Finding) -> Finding:
    """With the variables on which the ranks in question and all others disagree, where the job stood still; first those that the condition asks for."""
    if s.case.hang is None or not finding.culprit_ranks:
        return finding
    ranks, gate = finding.culprit_ranks, finding.condition
    found = list(disagreements(s.case, ranks))
    asked = [d for d in found if gate is not None and d.frame.file == gate.file and is_asked(gate.text, d.expression)]
    shown = [*asked, *(d for d in found if d not in asked)][:_MOST_VALUES]
    because = "".join(
        f" `{d.expression}` was {d.ours} on {w.name_ranks(ranks)}, {d.theirs} on all others."
        for d in asked
        if is_number(d)
    )
    evidence = (*finding.evidence, *(w.value_line(d, ranks) for d in shown))
    return replace(finding, evidence=evidence, because=finding.because + because)


def judge(case: Case | Situation, rules: Iterable[Rule] | None = None, independent: bool = False) -> Diagnosis:
    """Every rule's verdict on a case (or on one that is already analysed), and the diagnosis.

    `independent`: no job has failed, so no finding is the consequence of another.
    """
    situation = case if isinstance(case, Situation) else Situation(case)
    case = situation.case
    judge_program_of(scripts_of(case))
    outcomes: list[RuleOutcome] = []
    findings: list[Finding] = []
    remarks: list[Finding] = []
    broken: tuple[str, ...] = ()
    if rules is None:
        rules, broken = load_rules(bool(case.readings))
    stalls = situation.standing is None or situation.is_hang
    asked = [r for r in rules if r.applies(case)] if stalls else []  # of a job that moves nobody is accused
    for rule in sorted(asked, key=lambda r: _LATE.get(r.names, 0)):
        if _is_answered(rule, findings):
            outcomes.append(RuleOutcome(rule.id, Verdict.PASS))
            continue
        outcome, found = _judge_one(rule, situation)
        outcomes.append(
            outcome if rule.names is not Names.REMARK else replace(outcome, verdict=_OF_REMARK[outcome.verdict])
        )
        (remarks if rule.names is Names.REMARK else findings).extend(found)
    if situation.standing is not None:
        findings = [replace(f, confidence=min(f.confidence, _BY_LOOKS)) for f in findings]
    straggling = any(f.cause == "straggler" for f in findings)
    earlier = tuple(_attempt(replace(c, earlier=case.earlier[:i]), asked) for i, c in enumerate(case.earlier))
    ordered = _ordered(findings, {r.id: r.names for r in asked}, independent)
    ordered = tuple(_asked_first(situation, f) for f in ordered)
    ordered = tuple(_with_values(situation, f) if i == 0 else f for i, f in enumerate(ordered))
    outcome_of_job = situation.outcome(straggling, bool(ordered))
    if outcome_of_job is Outcome.HANG and ordered and _was_only_slow(situation, ordered[0]):
        outcome_of_job = Outcome.CRASH
    if ordered and ordered[0].rule in _STANDS and _has_no_end_of_its_own(situation, outcome_of_job):
        outcome_of_job = Outcome.HANG
    told = _after_first_failure(ordered, earlier, outcome_of_job)
    return Diagnosis(
        outcome=outcome_of_job,
        job=replace(case.job, world_size=case.size or None),
        hang=_hang(situation),
        findings=told,
        outcomes=tuple(outcomes),
        inventory=Inventory(case.present, case.absent),
        notes=(*_notes(situation, findings), *(found.remark for found in remarks), *broken),
        remarks=tuple(remarks),
        earlier=earlier,
        next_steps=() if independent else _next_steps(situation, told, outcome_of_job),
    )


def _is_answered(rule: Rule, findings: Sequence[Finding]) -> bool:
    """Whether a rule need not be asked after what others have found."""
    if rule.names is Names.MESSAGE:
        return any(f.cause != "unknown" for f in findings)
    return rule.names is Names.NOTHING and bool(findings)


def _was_only_slow(s: Situation, first: Finding) -> bool:
    """Whether the job's own limit ended it while the rank that the others waited for was at work: it would have come."""
    job, is_proven = s.case.job, s.case.hang is not None and s.case.hang.kind == "proven"
    has_failed = job.exit_code not in (0, None) and not (job.ended_by_us or job.interrupted_by)
    return first.cause == "slow-rank0-work" and has_failed and bool(s.case.ranks) and not is_proven


# What rules see on the stacks or in the words of ranks that stand, where a log does not tell how the job ended.
_STANDS = "collective-order-race dataloader-hang rank-exited-early shutdown-hang skipped-by-some stacks-disagree stale-build-lock"


def _has_no_end_of_its_own(s: Situation, outcome: Outcome) -> bool:
    """Whether nothing tells how a job ended that nobody watched, or a limit of somebody else ended it (124: timeout(1))."""
    return s.case.hang is None and (outcome is Outcome.UNKNOWN or s.case.job.exit_code == 124)


def _next_steps(s: Situation, findings: Sequence[Finding], outcome: Outcome) -> tuple[NextStep, ...]:
    """What decides. A fault in finding that out must not cost the verdict."""
    if any(f.cause != "unknown" for f in findings) or s.case.readings:
        return ()
    try:
        return next_steps(s, findings, outcome)
    except Exception:  # noqa: BLE001
        return ()


def _hang(s: Situation) -> HangObservation | None:
    """What the watcher saw, or several looks from outside."""
    if s.standing is None or s.case.hang is not None or not s.is_hang:
        return s.case.hang
    return HangObservation("stalled", None, None, s.waits.waiting, s.standing.text)


def _attempt(case: Case, rules: Sequence[Rule]) -> Attempt:
    """The verdict on an earlier attempt, of itself."""
    judged = judge(case, rules)
    return Attempt(case.attempt, judged.outcome, tuple(replace(f, attempt=case.attempt) for f in judged.findings))


def _after_first_failure(
    findings: tuple[Finding, ...], earlier: Sequence[Attempt], outcome: Outcome
) -> tuple[Finding, ...]:
    """With the failure of the attempt before in front, where the ranks could not start again: it is what has to be mended.

    Not of one that could not start either. In a job that failed although nothing went wrong in the last attempt, the failure is told alone.
    """
    failed = [a.findings[0] for a in earlier if a.findings and a.findings[0].cause not in ("unknown", CANNOT_RESTART)]
    if not findings and outcome is Outcome.CRASH:
        crashed = [
            a.findings[0] for a in earlier if a.outcome is Outcome.CRASH and a.findings and a.findings[0] in failed
        ]
        return tuple(replace(f, id="F1", consequence_of=None) for f in crashed[-1:])
    if not (findings and findings[0].rule == CANNOT_RESTART and failed):
        return findings
    root, cannot = failed[-1], findings[0]
    first = replace(
        root,
        id="F1",
        consequence_of=None,
        because=f"{root.because} {cannot.because}",
        evidence=(*root.evidence, *cannot.evidence[:_MOST_QUOTED]),
        fixes=(*root.fixes, *cannot.fixes[:1]),
    )
    later = (replace(f, consequence_of="F2" if f.consequence_of else None) for f in findings)
    return first, *(replace(f, id=f"F{i}") for i, f in enumerate(later, 2))


def _stall_note(wait: Stall) -> str:
    event, usual = wait.events[0], f"a step takes {wait.usual_s:.2g} s otherwise"
    if wait.is_reckoned:
        return f"the bar's {event['rate']} s/it is a moving average: it comes from one wait of about {wait.wait_s:.0f} s; {usual}"
    return f"the job made no progress for about {wait.wait_s:.0f} s before step {event['done']}; {usual}"


def _notes(s: Situation, found: Sequence[Finding]) -> tuple[str, ...]:
    notes = []
    if s.case.hang is not None and s.case.hang.withdrawn:
        notes.append("a suspicion was withdrawn: the job moved again")
    elif s.case.hang is not None and s.case.hang.reason and not s.case.hang.waiting_ranks:
        notes.append(s.case.hang.reason)
    if (wait := stall(s.events)) is not None:
        notes.append(_stall_note(wait))
    if (starts := slow_starts(s.events)) is not None and not any(f.rule == "slow-steps" for f in found):
        notes.append(starts.text())
    if not (s.is_hang or s.is_crash):
        notes += [
            f"the others waited {late.lost_s:.0f} s of {late.span_s:.0f} s for what rank {late.rank} alone does at "
            f"{w.place(line)}, as the program has it"
            for late, line in s.busy_by_design
        ]
    if s.standing is not None:
        notes.append(f"{s.standing.word.value.upper()}: {s.standing.text}")
    elif s.is_hang and not found:
        notes.append("no rule could establish a cause; the waits and stacks show what is known")
    return tuple(notes)
