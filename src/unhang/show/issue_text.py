"""The verdict as Markdown, to paste into an issue: what, where, why, how it is known, and the versions."""

from __future__ import annotations

import re

from unhang.model import Case, Diagnosis, Finding, WaitsFor
from unhang.show.headline import certainty, headline
from unhang.show.paper import printable

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
