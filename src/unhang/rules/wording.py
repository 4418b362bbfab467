"""How rules say things: ranks, calls, locations and the two sides of a difference, always in the same words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.positions import bare_op
from unhang.analyze.lines.pasted import Doing
from unhang.analyze.program.callpath import Path, innermost, show
from unhang.analyze.program.trees import line_text
from unhang.analyze.program.values import Disagreement
from unhang.model import (
    Case,
    CollectiveCall,
    EvidenceLine,
    Finding,
    Fix,
    Frame,
    LogLine,
    PendingCall,
    ProcessGroup,
    RankEvidence,
    WaitEdge,
    findings,
    user_frames,
)
from unhang.read.rank_folder import OUT_OF_SIGHT

# What ranks do is told in the present while the job runs, and in the past when it is over.
#
# A verb is written in both forms, `⟨waits|waited⟩`, in cards and by `wording.verb`; which one is said is decided in one place,
# where a finding gets its words and the end of the job is known.

_BOTH = re.compile(r"⟨([^⟨⟩|]*)\|([^⟨⟩|]*)⟩")
_BEGINS = re.compile(r"(?:^|(?<=[.] ))r(?=anks? \d)", re.MULTILINE)  # a sentence of the reason
_PAST = {
    "is": "was", "are": "were", "has": "had", "have": "had", "waits": "waited", "wait": "waited", "gives": "gave", "give": "gave",
    "makes": "made", "make": "made", "runs": "ran", "run": "ran", "stands": "stood", "stand": "stood", "holds": "held",
}  # fmt: skip


def both(words: str) -> str:
    """The words with their first one in both forms, where its past is known."""
    first, *rest = words.split(" ")
    return " ".join((f"⟨{first}|{_PAST[first]}⟩" if first in _PAST else first, *rest))


def told(text: str, is_over: bool) -> str:
    """The text with one form of each verb."""
    return _BOTH.sub(r"\2" if is_over else r"\1", text) if "⟨" in text else text


def in_tense(finding: Finding, is_over: bool) -> Finding:
    """The finding with one form of each verb, and its reason in sentences."""
    evidence = tuple(replace(e, text=told(e.text, is_over)) if "⟨" in e.text else e for e in finding.evidence)
    fixes = tuple(_fix(fix, is_over) for fix in finding.fixes)
    title = told(finding.title, is_over)
    because = _BEGINS.sub("R", told(finding.because, is_over))
    return replace(finding, title=title, because=because, evidence=evidence, fixes=fixes)


def _fix(fix: Fix, is_over: bool) -> Fix:
    texts = {name: getattr(fix, name) for name in ("title", "verify", "undo", "advice", "command", "setting")}
    changed = {name: told(text, is_over) for name, text in texts.items() if "⟨" in text}
    return replace(fix, **changed) if changed else fix


_MOST_RANGES = 12


def ranges(ranks: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2, 5`."""
    return findings.fold_ranks(ranks, _MOST_RANGES)


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0-2, 5`."""
    return findings.name_ranks(ranks, _MOST_RANGES)


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb form for one rank or several, in both tenses."""
    return both(one if len(ranks) == 1 else many)


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def group_of(group: ProcessGroup) -> dict[str, str]:
    """The group as the report names it."""
    return {"pg_name": group.name, "pg_desc": group.desc}


def group_named(name: str) -> dict[str, str]:
    """The same of a group of which only the name is known."""
    return {"pg_name": name, "pg_desc": ""}


def collective_of(call: CollectiveCall, seq: int) -> dict[str, Any]:
    """A call as the report names it."""
    return {"op": bare_op(call.op), "seq": seq, "sizes": [list(s) for s in call.in_sizes], "dtype": call.dtype}


def name_call(call: CollectiveCall) -> str:
    """`all_reduce(8x4 Float)`."""
    return f"{bare_op(call.op)}{str(call)[len(call.op) :]}"


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]


def lines_of(frames: Sequence[Frame]) -> str:
    """`line 3`, `lines 3 and 5`."""
    return f"line{'s' if len(frames) > 1 else ''} {listed([str(f.line) for f in frames])}"


def own_line(frames: Iterable[Frame]) -> Frame | None:
    """The innermost line of the user's code in a stack."""
    return next(iter(user_frames(frames)), None)


def spot(frame: Frame) -> str:
    """`train.py:41`."""
    return line_at(frame.file, frame.line)


def line_at(path: str, line: int) -> str:
    """The same of a line of which the function is not known."""
    return f"{base_name(path)}:{line}"


def place(frame: Frame | None) -> str:
    """`evaluate (train.py:41)`."""
    return f"{frame.function} ({spot(frame)})" if frame else "an unknown line"


def at(frame: Frame | None) -> str:
    """` at evaluate (train.py:41)`; nothing where the line is not known."""
    return f" at {place(frame)}" if frame else ""


def at_end_of(path: Path) -> str:
    """The same of the innermost line of a path."""
    return at(innermost(path))


def stack_of(doing: Doing) -> EvidenceLine:
    """What ranks do as evidence: the four innermost frames, the innermost first."""
    return EvidenceLine(f"{doing.who} stack", " < ".join(map(str, doing.frames[:4])), doing.line.source.line)


def lead(frame: Frame | None) -> str:
    """`evaluate (train.py:41): ` before what to change there; nothing where the line is not known."""
    return f"{place(frame)}: " if frame else ""


def code_line(frame: Frame | None, source: str) -> list[EvidenceLine]:
    """The source text of a frame as evidence, where it can be read."""
    text = line_text(frame.file, frame.line) if frame else ""
    return [EvidenceLine(source, f"{place(frame)}: {text}", frame.line)] if frame and text else []


def value_line(d: Disagreement, ranks: Sequence[int]) -> EvidenceLine:
    """`len(self.rows) = 12, on all others 32 (run, train.py:70)`."""
    here, there = f"on {name_ranks(ranks)}", "on all others"
    said = f"{d.expression} = {d.ours} {here}, {d.theirs} {there}"
    if d.ours.startswith("#"):
        said = f"{d.expression} are not the same {here} as {there}"
    elif d.ours.startswith("a text (") and d.theirs.startswith("a text ("):
        said = f"{d.expression} is another text {here} than {there}"
    return EvidenceLine("variables that differ", f"{said} ({d.frame.function}, {spot(d.frame)})")


def stack_lines(evidence: RankEvidence | None, most: int = 6) -> list[EvidenceLine]:
    """The user frames of a rank's main thread, innermost first."""
    stack = evidence.main_stack if evidence else None
    if evidence is None or stack is None:
        return []
    leaf = [f for f in stack.frames[:1] if not f.is_user]
    frames = [*leaf, *user_frames(stack.frames)[:most]]
    lines = [EvidenceLine(f"rank {evidence.rank} stack", str(f), f.line) for f in frames]
    for other in evidence.stacks:
        if other.given and other.frames and not user_frames(other.frames):
            text = f"{other.frames[0]}, given to it at {place(other.given[0])}"
            lines.append(EvidenceLine(f"rank {evidence.rank} thread {other.name}", text, other.given[0].line))
    if evidence.in_handler:
        lines.append(EvidenceLine(f"rank {evidence.rank} signal", f"it is in the handler of {evidence.in_handler}"))
    return lines


def log_line(source: str, line: LogLine) -> EvidenceLine:
    """A line of a log."""
    return EvidenceLine(source, line.text.strip()[:200], line.source.line)


def frame_lines(source: str, frames: Iterable[Frame], most: int = 6) -> list[EvidenceLine]:
    """The user's frames of a stack or a traceback, innermost first."""
    return [EvidenceLine(source, str(f), f.line) for f in user_frames(frames)[:most]]


def path_line(rank: int, what: str, path: Path) -> EvidenceLine:
    """A call and the way to it."""
    return EvidenceLine(
        f"rank {rank} calls", f"{what} from {show(path)}" if path else what, path[-1].line if path else None
    )


def both_sides(d: Divergence) -> Iterable[EvidenceLine]:
    """The call of the odd ranks and that of their peers at a divergence."""
    yield path_line(d.odd[0], f"#{d.seq} {name_call(d.odd_call)}", d.odd_path)
    yield path_line(d.reference[0], f"#{d.seq} {name_call(d.reference_call)}", d.made_path)


def at_call(call: CollectiveCall, frame: Frame | None) -> dict[str, Any]:
    """The fields of a finding on this call, at this line."""
    return {"location": frame, "group": group_of(call.group), "collective": collective_of(call, call.seq)}


def at_pending(call: PendingCall, frame: Frame | None) -> dict[str, Any]:
    """The same of a call of which only the recorder's note is known."""
    return {"location": frame, "group": group_named(call.group), "collective": {"op": call.kind, "seq": call.index}}


def at_wait(edge: WaitEdge, frame: Frame | None) -> dict[str, Any]:
    """The same of a call in which a rank waits."""
    call = {"op": edge.what.split(" ")[0], "seq": edge.seq}
    return {"location": frame, "group": group_named(edge.group), "collective": call}


def at_fork(d: Divergence | None, frame: Frame | None) -> dict[str, Any]:
    """The same of the call at which programs part; the line alone where none do."""
    if d is None:
        return {"location": frame}
    return {
        **at_call(d.reference_call, frame),
        "group": group_of(d.group),
        "collective": collective_of(d.reference_call, d.seq),
    }


def unheard_lines(case: Case, ranks: Collection[int]) -> list[EvidenceLine]:
    """Why a few of the ranks of other nodes are unknown, where their node was heard before."""
    names = {f"rank {rank}" for rank in ranks}
    return [EvidenceLine(a.what, a.reason) for a in case.absent if a.what in names and a.reason != OUT_OF_SIGHT][:4]


def waiting_line(edge: WaitEdge) -> EvidenceLine:
    """A wait as evidence."""
    targets = f"for {name_ranks(edge.targets)}" if edge.targets else ""
    return EvidenceLine(f"rank {edge.waiter} waits", f"{targets} in {edge.what}".strip())


def steps_apart(ranks: Mapping[int, RankEvidence]) -> str:
    """The optimizer steps of each rank, where they are not as many."""
    counts = {r: e.steps for r, e in ranks.items() if e.steps is not None}
    if len(set(counts.values())) < 2:
        return ""
    return "; optimizer steps: " + ", ".join(f"rank {r}: {n}" for r, n in counts.items())
