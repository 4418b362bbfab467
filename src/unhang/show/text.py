"""The report for a terminal, whose first line is the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unhang.model import Case, Diagnosis, EvidenceLine, Finding, Fix, Frame, Job, NextStep, Outcome, WaitsFor
from unhang.model.findings import NO_HELP, count_ranks, name_ranks
from unhang.show.course import (
    cost_of,
    cost_of_step,
    course_lines,
    is_remarkable,
    limit_in_words,
    run_card,
    stop_in_words,
    stop_of,
)
from unhang.show.paper import Paper, duration
from unhang.show.stacks import ShownStack, compared, frames_of, last_calls, line_of, native_rows, short_place
from unhang.show.verdict import certainty, ended, filled, headline, undecided
from unhang.show.wait_graph import WaitGraph, WaitNode, wait_graph, without_wait

_MOST_ROOTS, _MOST_FRAMES = 3, 4
_MOST = 12  # lines of one list: a report must stay readable at any number of ranks
_MANY_RULES = 3  # from here on their number says more than their names
_BADGE = {
    Outcome.HANG: "bad",
    Outcome.CRASH: "bad",
    Outcome.STRAGGLER: "warn",
    Outcome.CLEAN: "good",
    Outcome.MOVES: "good",
}


def _first_line(paper: Paper, diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> None:
    style = "warn" if diagnosis.word != diagnosis.outcome else _BADGE.get(diagnosis.outcome, "warn")
    said = (headline(diagnosis, case, waits), "strong")
    sure = [(f"  [{certainty(diagnosis.first)}]", "dim")] if diagnosis.first else []
    paper.folded([(diagnosis.word.upper(), style), "  ", said, *sure], len(diagnosis.word) + 2)


def first_line(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """The answer in one line."""
    paper = Paper(False, 100)
    _first_line(paper, diagnosis, case, waits)
    return str(paper).rstrip("\n")


def _facts(paper: Paper, diagnosis: Diagnosis, case: Case) -> None:
    """When and where it stood, what it was, what it would have cost: each said once."""
    job, hang = diagnosis.job, diagnosis.hang
    code = f"exit code {job.exit_code}" if job.exit_code is not None else ""
    stop = stop_in_words(stop_of(case, diagnosis.first))
    if hang is None:
        course = [" ".join(filter(None, (code, stop)))]
    elif hang.kind == "stalled":
        course = ["seen from outside, while it runs", stop]
    else:
        began = "" if hang.onset_s is None else f"{duration(hang.onset_s)} after the start"
        stood = ", ".join(filter(None, (stop, began)))
        found = "" if hang.detected_after_s is None else f"found {duration(hang.detected_after_s)} later"
        withdrawn = "withdrawn: it moved again" if hang.withdrawn else ""
        course = [f"{hang.kind} hang {stood}".strip(), found, withdrawn, code]
    setup = [f"{job.world_size} ranks" if job.world_size else "", f"{job.nodes} nodes" if job.nodes > 1 else ""]
    setup += [
        job.backend if job.world_size else f"backend {job.backend}" if job.backend else "",
        f"torch {job.torch_version}" if job.torch_version else "",
    ]
    what = ", ".join(filter(None, setup))
    for facts in (course, [what, limit_in_words(cost_of(case))]) if hang else ([what, *course],):
        if said := "; ".join(filter(None, facts)):
            paper.prose(said, style="dim")


def _table(paper: Paper, heading: str, lines: Sequence[tuple[str, str]]) -> None:
    if lines:
        paper.heading(heading)
        paper.table(lines)


def _wait_line(node: WaitNode, case: Case, is_over: bool) -> list[tuple[str, str, str]]:
    who = count_ranks(node.ranks)
    if not node.waits:
        said = without_wait(node.ranks, case)
        return [(who, re.sub(r"^waits? ", "waited ", said) if is_over else said, "")]
    verb = "waited for" if is_over else "waits for" if len(node.ranks) == 1 else "wait for"
    lines = []
    for wait in node.waits[:3]:
        each_other = len(node.ranks) > 1 and set(node.ranks) <= set(wait.targets)
        target = "each other" if each_other and len(wait.targets) == len(node.ranks) else name_ranks(wait.targets)
        note = " (another call than theirs)" if wait.mismatch else ""
        lines.append((who, f"{verb} {target}", f"in {wait.what}{note}"))
    return lines


def _is_over(diagnosis: Diagnosis) -> bool:
    """Whether the job has ended: all but one that is looked at from outside while it runs."""
    looked_at = diagnosis.outcome in (Outcome.STALLED, Outcome.MOVES)
    is_stalled = diagnosis.hang is not None and diagnosis.hang.kind == "stalled"
    return diagnosis.job.exit_code is not None and not looked_at and not is_stalled


def _waits(paper: Paper, graph: WaitGraph, waits: WaitsFor, case: Case, is_over: bool) -> None:
    if not waits.edges:
        return
    paper.heading("Who waited for whom" if is_over else "Who waits for whom")
    lines = [line for node in graph.nodes for line in _wait_line(node, case, is_over)]
    paper.table(lines[:_MOST])
    paper.more(len({line[0] for line in lines[_MOST:]}) + graph.left_out, "sets of ranks")
    for cycle in waits.cycles[:3]:
        verb, can = ("waited", "could") if is_over else ("wait", "can")
        paper.prose(f"A cycle: {name_ranks(cycle)} {verb} for each other; it {can} never end.")


def _frames(paper: Paper, frames: Sequence[Frame]) -> None:
    """User frames with their source line; a run of library frames shows its last one, the innermost call of it."""
    hidden = 0
    for number, frame in enumerate(frames):
        is_last = number == len(frames) - 1
        if not frame.is_user and not is_last and not frames[number + 1].is_user:
            hidden += 1
            continue
        if hidden:
            paper.line((f"    ... {hidden} library frame{'s' if hidden > 1 else ''}", "dim"), indent=2)
            hidden = 0
        place = f"{short_place(frame)}  {frame.function}()"
        paper.line(*([("> ", "user"), (place, "user")] if frame.is_user else [(f"  {place}", "dim")]), indent=4)
        if text := line_of(frame):
            paper.line(text, indent=10)


def _stack(paper: Paper, shown: ShownStack, lead: str = "", is_over: bool = False) -> None:
    title = shown.title.replace(" is here", " was here") if is_over else shown.title
    paper.line(lead, (title, "strong"), indent=2)
    frames = shown.frames
    if len(frames) > 40:
        paper.line((f"  ... {len(frames) - 40} outer frames", "dim"), indent=4)
    _frames(paper, frames[-40:])


def _where(paper: Paper) -> None:
    paper.heading("Where")
    paper.line(("most recent call last; > is your code", "dim"), indent=2)


def _stacks(paper: Paper, case: Case, finding: Finding, is_over: bool) -> None:
    culprit, expected = compared(case, finding)
    if culprit is None and expected is None:
        return
    _where(paper)
    if culprit:
        _stack(paper, culprit, is_over=is_over)
    if expected:
        _stack(paper, expected, "while " if culprit else "of its peers, ", is_over)


def _late_stacks(paper: Paper, case: Case, waits: WaitsFor) -> None:
    """Where those are for whom the others wait, when nobody can say why."""
    found = [(rank, *frames_of(case.ranks.get(rank))) for rank in waits.roots]
    shown = [ShownStack(f"rank {rank} {how}", (rank,), frames[::-1]) for rank, how, frames in found if frames]
    if shown:
        _where(paper)
    for stack in shown[:_MOST_ROOTS]:
        _stack(paper, stack)


def _evidence(paper: Paper, lines: Sequence[EvidenceLine]) -> None:
    if not lines:
        return
    paper.heading("Evidence")
    paper.table((line.source, line.text) for line in lines[:_MOST])
    paper.more(len(lines) - _MOST, "lines")


def _fix(paper: Paper, number: int, fix: Fix, job: Job) -> None:
    paper.prose(fix.title, style="strong", lead=f"{number}. ")
    if fix.change:
        paper.verbatim(filled(fix.change, job), indent=5)
    apply = "unhang fix --apply" if fix.patch else ""
    told = (("note:   ", fix.note), ("apply:  ", apply), ("verify: ", filled(fix.verify, job)), ("undo:   ", fix.undo))
    for lead, text in told:
        if text:
            paper.prose(text, indent=5, lead=lead)


def _fixes(paper: Paper, finding: Finding, job: Job) -> None:
    remedies = [fix for fix in finding.fixes if fix.helps]
    if remedies:
        paper.heading("What to do")
    if finding.unmended:
        paper.prose(finding.unmended)
    for number, fix in enumerate(remedies, 1):
        _fix(paper, number, fix, job)
    useless = [fix for fix in finding.fixes if not fix.helps]
    if useless:
        paper.heading("What does not help")
    for fix in useless:
        paper.prose(f"{fix.title.removeprefix(NO_HELP)}: {fix.verify}", lead="- ")


def _others(paper: Paper, findings: Sequence[Finding]) -> None:
    """Findings after the first: what follows from it, and what stands beside it."""
    groups = (
        ("Also seen, as a consequence", [f for f in findings if f.consequence_of]),
        ("Also found", [f for f in findings if not f.consequence_of]),
    )
    for title, members in groups:
        if members:
            paper.heading(title)
        for finding in members[:_MOST]:
            after = f", follows from {finding.consequence_of}" if finding.consequence_of else ""
            paper.prose(f"{finding.title}  [{certainty(finding)}{after}]", lead="- ")
        paper.more(len(members) - _MOST)


def _shown(paper: Paper, case: Case, diagnosis: Diagnosis) -> None:
    """What there is, when no rule has an opinion."""
    calls = last_calls(case)
    if calls:
        paper.heading("What the evidence shows: the last recorded call")
        paper.table((name_ranks(c.ranks), c.what, c.state) for c in calls[:_MOST])
        if len(calls) > _MOST:
            paper.line((f"... and {len(calls) - _MOST} other calls", "dim"), indent=2)
    elif diagnosis.inventory.present:
        paper.heading("What the evidence shows")
        paper.table((what, "") for what in diagnosis.inventory.present[:_MOST])


def _deciding(paper: Paper, case: Case, diagnosis: Diagnosis) -> None:
    reasons = undecided(diagnosis)
    if case.log and not (case.ranks or len(case.calls) or diagnosis.job.command):
        moves = diagnosis.outcome is Outcome.MOVES
        paper.heading("If it hangs all the same" if moves else "What would decide it")
        paper.prose("A hang right after the last line prints nothing." if moves else "A log alone tells no more.")
        paper.prose("If it still runs, unhang attach inspects it from outside; the job goes on.")
        paper.prose("The next run records calls and stacks of all ranks if it is started with: unhang run -- COMMAND")
        return
    if reasons:
        paper.heading("What would decide it")
    for reason, rules in reasons[:_MOST]:
        who = ", ".join(rules) if len(rules) < _MANY_RULES else f"{len(rules)} rules"
        paper.prose(f"{reason}: {who} could not judge", lead="- ")
    if reasons and not diagnosis.job.command:
        paper.prose("The next run records all of this if it is started with: unhang run -- COMMAND")


def _next_steps(paper: Paper, steps: Sequence[NextStep]) -> None:
    if steps:
        paper.heading("What to do now, in this order")
    for number, step in enumerate(steps, 1):
        paper.prose(f"{step.title} ({cost_of_step(step)})", style="strong", lead=f"{number}. ")
        paper.verbatim("$ " + step.do, indent=5)
        for seen, means in step.outcomes:
            paper.prose(f"{seen} -> {means}", indent=5, lead="- ")
        paper.prose(step.undo, indent=5, lead="undo: ")


def _attempts(paper: Paper, diagnosis: Diagnosis) -> None:
    """How each attempt before the last ended."""
    shown = diagnosis.first and diagnosis.first.attempt
    others = [attempt for attempt in diagnosis.earlier if attempt.number != shown]
    if others:
        paper.heading("Earlier attempts")
    for attempt in others[-_MOST:]:
        known = f"  [{certainty(attempt.findings[0])}]" if attempt.findings else ""
        paper.prose(f"{ended(attempt)}{known}", lead=f"attempt {attempt.number}: ")
        paper.table((line.source, line.text) for f in attempt.findings[:1] for line in f.evidence[:_MOST_FRAMES])


def _missing(paper: Paper, diagnosis: Diagnosis) -> None:
    absent = diagnosis.inventory.absent
    if not absent:
        return
    paper.heading("Missing evidence")
    paper.table((a.what, a.reason) for a in absent[:_MOST])
    paper.more(len(absent) - _MOST)


def _notes(paper: Paper, notes: Sequence[str]) -> None:
    if notes:
        paper.heading("Notes")
    for note in notes[:_MOST]:
        paper.prose(note, lead="- ")


def render_text(
    diagnosis: Diagnosis, case: Case, waits: WaitsFor, color: bool = False, width: int = 100, terminal: int = 0
) -> str:
    """The report as text with a final newline; a clean job is one line, and what there is of earlier attempts.

    Args:
        diagnosis: What was found.
        case: The evidence, for stacks and last calls.
        waits: Who waits for whom.
        color: Whether to use ANSI colours; without it there is no escape sequence.
        width: Columns at which prose is wrapped. Lines of code are not.
        terminal: Columns of a terminal, at which tables are wrapped too; 0: it is no terminal.
    """
    paper = Paper(color, terminal or width, bool(terminal))
    _first_line(paper, diagnosis, case, waits)
    if diagnosis.outcome is Outcome.CLEAN and not diagnosis.findings:
        _attempts(paper, diagnosis)
        if is_remarkable(case.course) or diagnosis.remarks:
            _table(paper, "How it ran", course_lines(case))
        _notes(paper, [found.remark for found in diagnosis.remarks])
        return str(paper)
    _facts(paper, diagnosis, case)
    if first := diagnosis.first:
        seen = case.of_attempt(first.attempt)
        paper.heading("Why")
        paper.prose(first.because)
        if not diagnosis.next_steps:  # which say the same, and more
            _fixes(paper, first, diagnosis.job)
        if seen is case:
            _waits(paper, wait_graph(waits, first.culprit_ranks), waits, case, _is_over(diagnosis))
        _stacks(paper, seen, first, _is_over(diagnosis))
        _evidence(paper, first.evidence)
        _others(paper, diagnosis.findings[1:])
    else:
        _waits(paper, wait_graph(waits), waits, case, _is_over(diagnosis))
        _late_stacks(paper, case, waits)
        _shown(paper, case, diagnosis)
        _deciding(paper, case, diagnosis)
    _table(paper, "C++ frames, innermost first", native_rows(case))
    _next_steps(paper, diagnosis.next_steps)
    _attempts(paper, diagnosis)
    _table(paper, "How it ran", course_lines(case))
    _table(paper, "How it was set up", run_card(case))
    _missing(paper, diagnosis)
    said = headline(diagnosis, case, waits)
    _notes(paper, [note for note in diagnosis.notes if said not in note])
    return str(paper)
