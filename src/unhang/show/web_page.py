"""The report as one HTML file that needs nothing else: no network, no server, no second file.

The verdict is plain HTML, which a reader without scripts sees too; foreign text in it is escaped by `markup`. What is drawn comes as JSON in
a script element that no browser runs; the page's own script writes it with `textContent`. A content security policy names the hashes of that
script and of the style sheet and forbids all else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from unhang.model import Case, Diagnosis, Finding, Job, Location, Outcome, WaitsFor
from unhang.model.findings import NO_HELP, fold_ranks, name_ranks
from unhang.numeric import has_numpy, np, npt
from unhang.read.environment import redact_text
from unhang.show.answer import (
    Markup,
    about_rule,
    behind,
    evidence,
    log_lines,
    markup,
    remedies,
    table,
    tag,
    verdict,
    wait_rows,
)
from unhang.show.course import (
    cost_in_words,
    cost_of,
    cost_of_step,
    course_lines,
    panels,
    run_card,
    stop_in_words,
    stop_of,
)
from unhang.show.paper import duration, printable
from unhang.show.stacks import (
    ShownStack,
    compared,
    flat_tree,
    last_calls,
    line_of,
    merged_stacks,
    rank_columns,
    rank_rows,
    short_place,
    source_around,
)
from unhang.show.timeline import Timeline, timeline
from unhang.show.verdict import certainties, certainty, filled, headline, issue_text, undecided
from unhang.show.wait_graph import wait_graph

View = dict[str, Any]
_MOST = 200  # entries of one list
_MOST_TREE = 300
_MOST_LOG = 30
_LAUNCHER_ENDS = re.compile(r"Sending process \d+ closing signal|Received \S+ death signal|SignalException: Process")
_MOST_ROWS = 24


def _source(location: Location | None) -> View | None:
    if location is None:
        return None
    lines = source_around(location.file, location.line)
    return {
        "file": location.file,
        "line": location.line,
        "function": location.function,
        "lines": [[line.number, line.text, line.is_it] for line in lines],
    }


def _what_is_missing(diagnosis: Diagnosis) -> str:
    absent = diagnosis.inventory.absent
    if diagnosis.outcome is Outcome.CLEAN or not absent:
        return ""
    shown = ", ".join(f"{a.what} ({a.reason})" for a in absent[:5])
    return f"Missing: {shown}" + (f" and {len(absent) - 5} more." if len(absent) > 5 else ".")


def _chips(diagnosis: Diagnosis) -> list[list[str]]:
    """[kind, label, value] of the short facts below the headline."""
    chips: list[list[str]] = []
    if first := diagnosis.first:
        if first.culprit_ranks:
            chips.append(["culprit", "culprit", name_ranks(first.culprit_ranks, 4)])
        if first.victim_ranks:
            chips.append(["victim", "held up", name_ranks(first.victim_ranks, 4)])
        chips += [["fact", *pair] for pair in certainties(first)]
    hang = diagnosis.hang
    if hang:
        chips.append(["fact", "hang", hang.kind + (", withdrawn" if hang.withdrawn else "")])
        if hang.detected_after_s is not None:
            chips.append(["fact", "found after", duration(hang.detected_after_s)])
    return chips


def _shared(left: ShownStack | None, right: ShownStack | None) -> int:
    """How many outer frames two stacks share: what follows is where they parted."""
    pairs = zip(left.frames if left else (), right.frames if right else (), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)


def _stack(shown: ShownStack | None, shared: int) -> View | None:
    if shown is None:
        return None
    frames = []
    first = max(0, len(shown.frames) - 80)
    for number, frame in enumerate(shown.frames[first:], first):
        kind = "lib" if not frame.is_user else "same" if number < shared else "user"
        frames.append({"place": short_place(frame), "function": frame.function, "kind": kind, "text": line_of(frame)})
    return {"title": shown.title, "frames": frames}


def _tree(case: Case, culprits: Sequence[int]) -> View:
    nodes, without = merged_stacks(case)
    accused = set(culprits)
    lines = flat_tree(nodes)
    return {
        "lines": [
            {
                "depth": depth,
                "place": short_place(node.frame),
                "function": node.frame.function,
                "user": node.frame.is_user,
                "ranks": fold_ranks(node.ranks, 4),
                "count": len(node.ranks),
                "culprit": bool(accused) and set(node.ranks) <= accused,
                "leaf": not node.children,
            }
            for depth, node in lines[:_MOST_TREE]
        ],
        "more": max(0, len(lines) - _MOST_TREE),
        "without": name_ranks(without) if without and lines else "",
    }


def _findings(findings: Sequence[Finding]) -> list[View]:
    return [
        {
            "id": f.id if f.attempt is None else f"attempt {f.attempt}",
            "title": f.title,
            "rule": f.rule,
            "certainty": certainty(f),
            "because": f.because,
            "after": f.consequence_of or "",
            "ranks": name_ranks(f.culprit_ranks, 4) if f.culprit_ranks else "",
        }
        for f in findings[:_MOST]
    ]


def _moment(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


def _group_counts(case: Case) -> str:
    """`default_pg (16), 2 x TENSOR_MODEL_PARALLEL_GROUP (8)`."""
    counts = Counter((str(g), len(g.ranks)) for g in case.groups)
    shown = [f"{n} x {name} ({size})" if n > 1 else f"{name} ({size})" for (name, size), n in counts.items()]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} other kinds" if len(shown) > 12 else "")


def _facts(job: Job, diagnosis: Diagnosis, case: Case) -> list[list[str]]:
    hang, found = diagnosis.hang, ""
    if hang:
        after = "" if hang.detected_after_s is None else f"{duration(hang.detected_after_s)} after the onset: "
        found = after + (hang.reason or hang.kind)
    rows = [
        ("Command", " ".join(job.command)),
        ("Ranks", f"{job.world_size or len(case.world):,}" + (f" on {job.nodes} nodes" if job.nodes > 1 else "")),
        ("Backend", job.backend),
        ("torch", job.torch_version),
        ("Started", _moment(job.started_ns) if job.started_ns > 0 else ""),
        ("Onset", f"{duration(hang.onset_s)} after the start" if hang and hang.onset_s is not None else ""),
        ("Found", found),
        ("Stopped", stop_in_words(stop_of(case, diagnosis.first))),
        ("Cost", cost_in_words(cost_of(case))),
        ("Exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("Ended by", "unhang" if job.ended_by_us else ""),
        ("Groups", _group_counts(case)),
        ("Calls recorded", f"{len(case.calls):,}" if len(case.calls) else ""),
        *course_lines(case),
        *run_card(case),
    ]
    return [[label, value] for label, value in rows if value]


def _pack(arrays: Sequence[tuple[str, bool, npt.NDArray[np.uint32]]]) -> View:
    """32-bit arrays as one base64 text: differences where values grow, bytes of equal weight side by side, deflated."""
    parts = []
    for _, is_delta, array in arrays:
        values = np.diff(array, prepend=np.uint32(0)) if is_delta and len(array) else array
        parts.append(np.ascontiguousarray(values.astype("<u4").view(np.uint8).reshape(-1, 4).T).tobytes())
    data = base64.b64encode(zlib.compress(b"".join(parts), 6)).decode("ascii")
    return {"columns": [[name, len(array), is_delta] for name, is_delta, array in arrays], "data": data}


def _lanes(shown: Timeline) -> View:
    places = {text: number for number, text in enumerate(dict.fromkeys(shown.wheres))}
    per_rank = {
        "ranks": np.array(shown.ranks, dtype=np.uint32),
        "places": np.array([places[text] for text in shown.wheres], dtype=np.uint32),
        "steps": np.array([0 if s is None else s + 1 for s in shown.steps], dtype=np.uint32),
        "offsets": shown.offsets,
    }
    arrays = [(name, True, array) for name, array in per_rank.items()]
    arrays += [(name, name != "length", array) for name, array in shown.columns.items()]
    return {
        "packed": _pack(arrays),
        "kinds": [[k["op"], k["group"], k["sizes"], k["at"]] for k in shown.kinds],
        "wheres": list(places),
        "markers": [[m.rank, m.at, m.kind, printable(m.text, most=300)] for m in shown.markers],
        "unit": shown.unit_ns,
        "end": shown.end,
        "onset": shown.onset,
        "onsetName": shown.onset_name,
        "focus": list(shown.focus),
        "most": shown.most_per_rank,
        "leftOut": shown.left_out,
        "calls": len(shown),
    }


def _fixes(finding: Finding | None, job: Job) -> list[View]:
    names = ("title", "setting", "command", "patch", "advice", "note", "verify", "undo")
    remedies = [fix for fix in (finding.fixes if finding else ()) if fix.helps]
    return [{name: filled(getattr(fix, name), job) for name in names} for fix in remedies]


def _useless(finding: Finding | None) -> list[View]:
    """What is often tried, and why it does not help."""
    warnings = [fix for fix in (finding.fixes if finding else ()) if not fix.helps]
    return [{"title": fix.title.removeprefix(NO_HELP), "why": fix.verify} for fix in warnings]


def _of_attempts(diagnosis: Diagnosis) -> list[Finding]:
    """Why each attempt before the last ended, but for the one that is told first."""
    first = diagnosis.first and diagnosis.first.attempt
    return [f for a in diagnosis.earlier for f in a.findings[:1] if a.number != first]


def _log(case: Case, culprits: Sequence[int]) -> View:
    """The last lines that the culprits wrote; where no line is known to be theirs, the last ones of all."""
    accused = set(culprits)
    own = [line for line in case.log if line.rank in accused]
    title = f"The last lines of {name_ranks(culprits, 4)}" if own else "The last lines of the log"
    lines = own or case.log
    # What a launcher writes when it ends the ranks says nothing on why, and would fill the page.
    ended = next((i for i, line in enumerate(lines) if _LAUNCHER_ENDS.search(line.text)), len(lines))
    lines = (lines[:ended] or lines)[-_MOST_LOG:]
    return {"title": title, "lines": [[str(line.source.line or ""), redact_text(line.text[:1000])] for line in lines]}


def _clean(value: Any) -> Any:
    """The same data with every text made printable; lines and tabs stay."""
    if isinstance(value, str):
        return printable(value, keep="\n\t", most=20_000)
    if isinstance(value, Mapping):
        return {key: item if key == "data" else _clean(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_clean(item) for item in value]
    return value


def page_data(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> View:
    """Everything that the page shows, printable and bounded in size."""
    first = diagnosis.first
    culprits = first.culprit_ranks if first else ()
    left, right = compared(case.of_attempt(first.attempt), first) if first else (None, None)
    shared = _shared(left, right)
    view: View = {
        "outcome": "check" if case.readings and first else diagnosis.outcome.value,
        "word": "check" if case.readings and first else diagnosis.word,
        "isCheck": bool(case.readings),
        "headline": headline(diagnosis, case, waits),
        "rule": first.rule if first else "",
        "because": first.because if first else _what_is_missing(diagnosis),
        "chips": _chips(diagnosis),
        "culprits": list(culprits),
        "place": _source(first.location) if first else None,
        "evidence": [[e.source, e.text] for e in (first.evidence[:_MOST] if first else ())],
        "fixes": _fixes(first, diagnosis.job),
        "unmended": first.unmended if first else "",
        "useless": _useless(first),
        "steps": [{**asdict(step), "cost": cost_of_step(step)} for step in diagnosis.next_steps],
        "others": _findings([*diagnosis.findings[1:], *_of_attempts(diagnosis)]),
        "lastCalls": [[name_ranks(c.ranks), c.what, c.state] for c in last_calls(case)[:40]] if not first else [],
        "undecided": [[reason, ", ".join(rules)] for reason, rules in undecided(diagnosis)[:40]] if not first else [],
        "lanes": _lanes(timeline(case)) if has_numpy() else {"calls": 0, "markers": []},
        "log": _log(case, culprits),
        "rankTable": rank_columns(rank_rows(case, waits)),
        "stacks": {"left": _stack(left, shared), "right": _stack(right, shared), "tree": _tree(case, culprits)},
        "outcomes": [[o.rule, o.verdict.value, o.reason] for o in diagnosis.outcomes],
        "present": list(diagnosis.inventory.present[:_MOST]),
        "absent": [[a.what, a.reason] for a in diagnosis.inventory.absent[:_MOST]],
        "notes": list(diagnosis.notes[:_MOST]),
        "course": panels(case.course),
        "facts": _facts(diagnosis.job, diagnosis, case),
    }
    cleaned: View = _clean(view)
    return cleaned


_SCRIPTS = ("page.js", "ranks.js", "lanes.js", "lanes_input.js", "trace.js", "course.js", "start.js")
_FOR_SCRIPTS = ("headline", "culprits", "lanes", "stacks", "course", "rankTable")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def _asset(name: str) -> str:
    return files("unhang.show").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii") + "'"


def _inert(data: object) -> str:
    """JSON that cannot end its script element, whatever it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _first_rows(columns: Sequence[View], first: set[int]) -> Markup:
    """The table of ranks as it stands without scripts: those in question first, and no more than a few."""
    if not columns:
        return Markup("")
    ranks = columns[0]["values"]
    order = sorted(range(len(ranks)), key=lambda i: (ranks[i] not in first, i))[:_MOST_ROWS]
    texts = [[c["texts"][v] if "texts" in c else "" if v is None else str(v) for v in c["values"]] for c in columns]
    left = len(ranks) - len(order)
    note = tag("p", f"{left} more ranks are shown if scripts are enabled.") if left else None
    return markup(table([c["name"] for c in columns], [[column[i] for column in texts] for i in order]), note)


def _static(data: View, diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> dict[str, Markup]:
    """What stands in the page without scripts, by slot."""
    facts, culprits = dict(data["facts"]), data["culprits"]
    rule = about_rule(data["rule"])
    return {
        "title": markup(f"{data['word'].upper()}: {data['headline']}"[:160]),
        "command": markup(facts.get("Command") or next(iter(diagnosis.inventory.present), "")),
        "when": markup(facts.get("Started", "")),
        "verdict": verdict(data, issue_text(diagnosis, case, waits), bool(rule)),
        "remedies": remedies(data),
        "waits": wait_rows(case, wait_graph(waits, culprits), waits, culprits),
        "log": log_lines(data["log"]["title"], data["log"]["lines"]),
        "evidence": evidence(data),
        "ranks": _first_rows(data["rankTable"]["columns"], {*culprits, *waits.roots}),
        "behind": behind(data, rule),
    }


def render_html(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """The whole page; the same input gives the same text.

    Blocks: for the time of reading the source lines that it quotes, and for about a second per million calls.
    """
    data = page_data(diagnosis, case, waits)
    style = _asset("page.css")
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    ours = f"script-src {_hash(script)}; style-src {_hash(style)}"
    slots = {
        **_static(data, diagnosis, case, waits),
        "policy": f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'",
        "style": style,
        "data": _inert({name: data[name] for name in _FOR_SCRIPTS}),
        "script": script,
    }
    # One pass: a slot's name within foreign text is not a slot.
    return _SLOT.sub(lambda match: slots[match[1]], _asset("page.html"))
