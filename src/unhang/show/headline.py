"""The answer in one line, the same in every output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from unhang.analyze.standing import standing
from unhang.model import Attempt, Case, Diagnosis, Finding, Job, Outcome, Verdict, WaitsFor, grouped
from unhang.model.findings import name_ranks
from unhang.show.paper import printable

MOST_CHARACTERS = 80
_LONGEST_COMMAND = 100


def _with_place(finding: Finding) -> str:
    place = finding.location
    if place is None:
        return finding.title
    name = place.file.rsplit("/", 1)[-1]
    is_there = f"{name}:" in finding.title  # a second line of the same file would only confuse
    return finding.title if is_there else f"{finding.title}, at {name}:{place.line} in {place.function}()"


def _without_finding(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    if (looked := standing(case, waits)) is not None:
        return looked.text
    code = diagnosis.job.exit_code
    ended = "" if code is None else f" (exit code {code})"
    match diagnosis.outcome:
        case Outcome.CLEAN if diagnosis.job.end_line:
            from unhang.read.logs.attempts import ANOTHER_START  # a job that was watched never needs it

            others = [f"{a.what}: {a.reason.partition('; ')[2]}" for a in case.absent if ANOTHER_START in a.reason]
            more = f"; of other starts, {'; '.join(others)}" if others else ""
            return f"its log says that the job ended well ({_short(diagnosis.job.end_line)}): nothing wrong found{more}"
        case Outcome.CLEAN:
            count, seen = len(case.world), len(case.in_sight)
            who = f"{count} rank{'' if count == 1 else 's'}" if count else "the job"
            who = who if seen == count else f"{seen} of {who}"
            if again := _after_restarts(diagnosis):
                return f"{again}: {who} ran to the end{ended}"
            return f"{who} ran to the end{ended}: nothing wrong found" if ended else f"{who}: nothing wrong found"
        case Outcome.HANG:
            waiting = diagnosis.hang.waiting_ranks if diagnosis.hang else waits.waiting
            verb = "makes" if len(waiting) == 1 else "make"
            who = name_ranks(waiting) if waiting else "the ranks"
            return f"{who} {verb} no progress; the evidence does not suffice to name a cause"
        case Outcome.CRASH:
            last = case.loose_errors[-1] if case.loose_errors else None
            ended = ended or (f" ({_short(f'{last.type}: {last.message}')})" if last else "")
            return f"the job failed{ended}; the evidence does not suffice to name a cause"
        case Outcome.STRAGGLER:
            return "a rank is late, but makes progress; the evidence does not suffice to name a cause"
        case Outcome.MOVES:
            from unhang.read.logs.attempts import steps_at_the_end

            many = steps_at_the_end(case.events, case.log)
            what = "answers of the server" if any(e.kind == "work.serving" for e in case.events) else "steps"
            return f"the job goes on up to the last line of its log ({many} {what}): nothing wrong found in it"
        case _ if case.log and not len(case.calls):
            text = next((line.text.strip() for line in reversed(case.log) if line.text.strip()), "")
            read = f"{len(case.log)} line{'' if len(case.log) == 1 else 's'}, the last is {_short(text)}"
            return f"the log shows neither that the job failed nor that it ended ({read})"
        case _:
            return "the evidence does not suffice to judge what became of the job"


def _after_restarts(diagnosis: Diagnosis) -> str:
    count = len(diagnosis.earlier)
    return "" if not count else "after one restart" if count == 1 else f"after {count} restarts"


def _short(text: str) -> str:
    first = (text.splitlines() or [""])[0]
    return f'"{first}"' if len(first) <= MOST_CHARACTERS else f'"{first[:MOST_CHARACTERS]} ..."'


def headline(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """What happened: the title of the first finding with its place, or what is known without one."""
    found = diagnosis.findings
    if not found:
        said = _without_finding(diagnosis, case, waits)
    elif found[0].attempt is not None and len(found) > 1:
        return f"attempt {found[0].attempt}: {_with_place(found[0])}; {found[1].title}"
    else:
        said = _with_place(found[0])
    return "; ".join((said, *_of_attempts(diagnosis)))


def _of_attempts(diagnosis: Diagnosis) -> Iterator[str]:
    """How the last of the attempts before ended, and how many there were."""
    if not diagnosis.earlier:
        return
    last = diagnosis.earlier[-1]
    found = diagnosis.findings[0] if diagnosis.findings else None
    firsts = [(a.number, a.findings[0]) for a in diagnosis.earlier if found and a.findings]
    same = [
        n
        for n, f in firsts
        if found and (f.rule, f.culprit_ranks, f.location) == (found.rule, found.culprit_ranks, found.location)
    ]
    if len(same) == len(diagnosis.earlier):
        yield f"also in {name_attempts(same)}"
    else:
        yield f"attempt {last.number}: {ended(last)}"


def name_attempts(numbers: Sequence[int]) -> str:
    """`attempt 0`, `attempts 0 and 1`."""
    *first, last = map(str, numbers)
    return f"attempts {', '.join(first)} and {last}" if first else f"attempt {last}"


def ended(attempt: Attempt) -> str:
    """What is known of the end of an attempt."""
    return _with_place(attempt.findings[0]) if attempt.findings else "the evidence does not suffice to say why"


def certainties(finding: Finding) -> tuple[tuple[str, str], ...]:
    """(of what, how it is known) of a finding: its cause and how sure that is; or, where no cause is established, how sure it is who."""
    sure = f"{finding.confidence:.0%}"
    if finding.cause != "unknown":
        return ("cause", finding.cause), ("confidence", sure)
    if "cause is not established" in finding.title:
        return (("confidence", sure),)
    why = ("why", "not established")
    return (("who", sure), why) if finding.culprit_ranks else (why, ("confidence", sure))


def certainty(finding: Finding) -> str:
    """The same in a few words: `code-divergence, 93%`, or `who: 90%; why: not established`."""
    parts = certainties(finding)
    if finding.cause != "unknown":
        return ", ".join(value for _, value in parts)
    return "; ".join(f"{of}: {value}" for of, value in parts)


def filled(text: str, job: Job) -> str:
    """What to type, with the job's own command where it is known and short."""
    command = shlex.join(job.command)
    return text.replace("<the same command>", command) if 0 < len(command) <= _LONGEST_COMMAND else text


def undecided(diagnosis: Diagnosis) -> list[tuple[str, tuple[str, ...]]]:
    """(what was missing, rules that could not judge without it), the one that would help most rules first."""
    rules = grouped(
        (outcome.reason, outcome.rule)
        for outcome in diagnosis.outcomes
        if outcome.verdict is Verdict.SKIPPED and outcome.reason
    )
    return sorted(((reason, tuple(r)) for reason, r in rules.items()), key=lambda pair: (-len(pair[1]), pair[0]))


# The verdict as Markdown, to paste into an issue: what, where, why, how it is known, and the versions.

_MOST_LINES = 10


def _plain(text: str) -> str:
    """One line that Markdown shows as it is: no markup of the job's own, no mention of anybody."""
    line = " ".join(printable(text, most=600).split())
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", line).replace("@", "@\u200b")


def _block(text: str, kind: str = "") -> list[str]:
    """A fenced block whose fence is longer than any within it."""
    shown = printable(text, keep="\n\t").rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return [f"{fence}{kind}", shown, fence]


def _remedies(finding: Finding) -> list[str]:
    lines: list[str] = []
    for fix in (f for f in finding.fixes if f.helps):
        lines.append(f"- {_plain(fix.title)}")
        for kind, text in fix.changes.items():
            said = (
                [f"  {_plain(text)}"]
                if kind == "advice"
                else ["", *_block(text, "diff" if kind == "patch" else ""), ""]
            )
            lines += said
    return ["", "**What to do**", "", *lines] if lines else []


def issue_text(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """The verdict in Markdown, ends with a newline; the command of the job is not in it, since it may name what is private."""
    lines = [f"**{diagnosis.word.upper()}: {_plain(headline(diagnosis, case, waits))}**", ""]
    if diagnosis.findings:
        first = diagnosis.findings[0]
        lines += [_plain(first.because), "", f"Rule `{first.rule}` ({_plain(certainty(first))})"]
        if first.location:
            lines += ["", *_block(f"{first.location.file}:{first.location.line} in {first.location.function}()")]
        if first.evidence:
            shown = [f"- {_plain(line.source)}: {_plain(line.text)}" for line in first.evidence[:_MOST_LINES]]
            more = len(first.evidence) - _MOST_LINES
            lines += ["", "**Evidence**", "", *shown, *([f"- and {more} more lines"] if more > 0 else [])]
        lines += _remedies(first)
    job = diagnosis.job
    world = job.world_size or len(case.world)
    known = [
        f"{world} ranks" + (f" on {job.nodes} nodes" if job.nodes > 1 else "") if world else "",
        job.backend,
        f"torch {job.torch_version}" if job.torch_version else "",
    ]
    lines += [
        "",
        f"_Found by unhang: {', '.join(_plain(part) for part in known if part) or 'no more is known of the job'}_",
    ]
    return "\n".join(lines) + "\n"
