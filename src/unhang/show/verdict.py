"""The verdict: in one line, the same in every output; as Markdown, to paste into an issue; and as `report.json`.

That is the contract "unhang.report/1": keys are never renamed or removed, and stand in a fixed order.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unhang.analyze.waits.standing import standing
from unhang.model import (
    Attempt,
    Case,
    Diagnosis,
    Finding,
    Fix,
    HangObservation,
    Job,
    Outcome,
    Verdict,
    WaitsFor,
    grouped,
)
from unhang.model.findings import name_ranks
from unhang.show.course import cost_of, run_card, stop_of
from unhang.show.paper import printable

MOST_CHARACTERS = 80
_LONGEST_COMMAND = 100


def _with_place(finding: Finding) -> str:
    place = finding.location
    if place is None:
        return finding.title
    is_there = f"{place.file.rsplit('/', 1)[-1]}:" in finding.title  # a second line of the same file would only confuse
    return finding.title if is_there else f"{finding.title}, at {place}()"


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
    first = diagnosis.first and _of_whom(diagnosis.first)
    same = [a.number for a in diagnosis.earlier if first and a.findings and _of_whom(a.findings[0]) == first]
    if len(same) == len(diagnosis.earlier):
        yield f"also in {name_attempts(same)}"
    else:
        yield f"attempt {last.number}: {ended(last)}"


def _of_whom(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.culprit_ranks, finding.location


def name_attempts(numbers: Sequence[int]) -> str:
    """`attempt 0`, `attempts 0 and 1`."""
    *first, last = map(str, numbers)
    return f"attempts {', '.join(first)} and {last}" if first else f"attempt {last}"


def ended(attempt: Attempt) -> str:
    """What is known of the end of an attempt."""
    if attempt.findings:
        return _with_place(attempt.findings[0])
    is_clean = attempt.outcome is Outcome.CLEAN
    return "nothing wrong is seen in it" if is_clean else "the evidence does not suffice to say why"


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
    skipped = (o for o in diagnosis.outcomes if o.verdict is Verdict.SKIPPED and o.reason)
    rules = grouped((outcome.reason, outcome.rule) for outcome in skipped)
    return sorted(((reason, tuple(r)) for reason, r in rules.items()), key=lambda pair: (-len(pair[1]), pair[0]))


# The verdict as Markdown, to paste into an issue: what, where, why, how it is known, and the versions.

_MOST_LINES = 10


def _line(text: str) -> str:
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
        lines.append(f"- {_line(fix.title)}")
        for kind, text in fix.changes.items():
            block = ["", *_block(text, "diff" if kind == "patch" else ""), ""]
            lines += [f"  {_line(text)}"] if kind == "advice" else block
    return ["", "**What to do**", "", *lines] if lines else []


def issue_text(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """The verdict in Markdown, ends with a newline; the command of the job is not in it, since it may name what is private."""
    lines = [f"**{diagnosis.word.upper()}: {_line(headline(diagnosis, case, waits))}**", ""]
    if first := diagnosis.first:
        lines += [_line(first.because), "", f"Rule `{first.rule}` ({_line(certainty(first))})"]
        if first.location:
            lines += ["", *_block(f"{first.location.file}:{first.location.line} in {first.location.function}()")]
        if first.evidence:
            shown = [f"- {_line(line.source)}: {_line(line.text)}" for line in first.evidence[:_MOST_LINES]]
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
    about = ", ".join(_line(part) for part in known if part) or "no more is known of the job"
    lines += ["", f"_Found by unhang: {about}_"]
    return "\n".join(lines) + "\n"


# As JSON.

SCHEMA = "unhang.report/1"
_NUMBER_LIST = re.compile(r"\[\n\s*(-?\d+(?:,\n\s*-?\d+)*)\n\s*\]")  # JSON strings hold no raw newline


def _plain(value: Any) -> Any:
    """A value that JSON knows: numpy scalars become numbers, sets and tuples lists, NaN null, the rest text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return [_plain(v) for v in sorted(value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(v) for v in value]
    scalar = value.item() if hasattr(value, "item") else value
    if isinstance(scalar, int):
        return int(scalar)
    if isinstance(scalar, float):
        return scalar if math.isfinite(scalar) else None
    return str(scalar)


def encoded(report: Mapping[str, Any]) -> bytes:
    """Indented UTF-8 JSON in which a list of numbers is one line."""
    text = json.dumps(_plain(report), indent=2, ensure_ascii=False, allow_nan=False)
    folded = _NUMBER_LIST.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
    # A lone surrogate (an undecodable byte of a path) leaves as \udcXX, which is what JSON calls it.
    return folded.encode("utf-8", "backslashreplace")


def fields(value: object, *names: str) -> dict[str, Any]:
    """Attributes of it, by their names."""
    return {name: getattr(value, name) for name in names}


def _hang(hang: HangObservation | None) -> dict[str, Any] | None:
    if hang is None:
        return None
    times = {n: None if s is None else round(s, 6) for n, s in fields(hang, "onset_s", "detected_after_s").items()}
    return {"kind": hang.kind, **times, "waiting_ranks": hang.waiting_ranks}


def _fix(fix: Fix) -> dict[str, str]:
    more = {name: text for name in ("undo", "kind") if (text := getattr(fix, name))}
    return {"title": fix.title, **fix.changes, "verify": fix.verify, **more}


def evidence_json(finding: Finding) -> list[dict[str, Any]]:
    """The lines that prove a finding."""
    return [fields(e, "source", "line", "text") for e in finding.evidence]


def _finding(finding: Finding) -> dict[str, Any]:
    who = ("culprit_ranks", "victim_ranks", "process_group", "collective")
    return {
        **fields(finding, "id", "rule", "cause", "title", "confidence", *who),
        "location": finding.location and fields(finding.location, "file", "line", "function"),
        "because": finding.because,
        "evidence": evidence_json(finding),
        "fixes": [_fix(fix) for fix in finding.fixes],
        "consequence_of": finding.consequence_of,
        **({} if finding.attempt is None else {"attempt": finding.attempt}),
        **({} if finding.condition is None else {"condition": asdict(finding.condition)}),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "outcome": attempt.outcome.value,
        "findings": [_finding(f) for f in attempt.findings],
    }


def _course(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    """Where the job stopped, what that cost, how it ran until then; only what is known, without the samples."""
    course = case.course
    found = {
        "stop": stop_of(case, diagnosis.first),
        "cost": cost_of(case),
        "set_up": [{"what": what, "value": value} for what, value in run_card(case)],
        "course": {
            **fields(course, "ran_s", "steps", "slow_steps", "slow_count", "slower", "stalls", "contexts"),
            "steps": {rank: asdict(pace) for rank, pace in course.steps.items()},
            "slow_steps": [asdict(step) for step in course.slow_steps],
            "slower": asdict(course.slower) if course.slower else None,
            "stalls": [asdict(stall) for stall in course.stalls],
        }
        if course is not None
        else {},
    }
    return {name: value for name, value in found.items() if value}


def _as_reported(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same of a job of which nothing but a report is left."""
    return {name: value for name, value in fields(diagnosis, "stop", "cost", "set_up", "course").items() if value}


def to_json(diagnosis: Diagnosis, case: Case | None = None) -> bytes:
    """The report as UTF-8 JSON with a final newline; the same diagnosis gives the same bytes. `case`: for the course of the job."""
    report = {
        "schema": SCHEMA,
        "outcome": diagnosis.outcome.value,
        "job": fields(diagnosis.job, "world_size", "nodes", "command", "backend", "torch_version", "exit_code"),
        "hang": _hang(diagnosis.hang),
        "findings": [_finding(f) for f in diagnosis.findings],
        "outcomes": [fields(o, "rule", "verdict", "reason") for o in diagnosis.outcomes],
        "inventory": {
            "present": diagnosis.inventory.present,
            "absent": [fields(a, "what", "reason") for a in diagnosis.inventory.absent],
        },
        "notes": diagnosis.notes,
        "verdict": diagnosis.word,
        **({"earlier": [_attempt(a) for a in diagnosis.earlier]} if diagnosis.earlier else {}),
        **({"next_steps": [asdict(step) for step in diagnosis.next_steps]} if diagnosis.next_steps else {}),
        **(_as_reported(diagnosis) or (_course(case, diagnosis) if case is not None else {})),
    }
    return encoded(report) + b"\n"
