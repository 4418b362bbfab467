"""Writes the page of the hang benchmark, with its plot, from the results."""

from __future__ import annotations

import statistics
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.hangbench.cases import HERE, TABLE
from benchmarks.hangbench.peers import TIMEOUT_S, TOOLS
from benchmarks.hangbench.score import FALSE_ACCUSATION, HIT, NOT_RUN, UNDECIDED, share, wilson
from benchmarks.hangbench.summary import PARTS, count, fault_rows, healthy_rows, proven_times

Row = Mapping[str, Any]
DOCS = HERE.parents[1] / "docs"
FAMILIES = (
    ("ranks disagree", ("code-divergence", "size-mismatch", "collective-order-race", "unused-parameters")),
    ("data", ("uneven-inputs", "dataloader-hang", "shm-too-small")),
    ("a rank stands still", ("rank-frozen", "rank-stuck-in-user-code", "slow-rank0-work", "shutdown-hang")),
    ("a rank fails", ("user-exception", "gpu-oom", "rank-crashed-earlier", "rank-exited-early", "external-signal",
                      "fd-exhaustion", "filesystem-race")),
    ("start and network", ("rendezvous-incomplete", "launcher-misuse", "network-unstable")),
    ("slow", ("straggler",)),
)  # fmt: skip


def family_of(row: Row) -> str:
    """The family of the cause that is right."""
    causes = row["truth"]["causes"]
    return next((name for name, members in FAMILIES if causes[0] in members), "other")


def write_docs(rows: Sequence[Row], peer_rows: Sequence[Row], reproductions: Sequence[Row], docs: Path = DOCS) -> Path:
    """Writes `hangbench.md` and `hangbench.svg`; returns the page."""
    text = (HERE / "page.md").read_text()
    parts = {
        "figures": figures(rows),
        "families": families(rows),
        "misses": misses(rows),
        "peers": peer_table(rows, peer_rows),
        "reproduce": reproduce_text(reproductions),
        "options": f"`{' '.join(TABLE['options'])}`",
        "timeout": str(TIMEOUT_S),
    }
    for name, content in parts.items():
        text = text.replace("{{" + name + "}}", content)
    (docs / "hangbench.svg").write_text(plot(bars(rows, peer_rows)))
    page = docs / "hangbench.md"
    page.write_text(text)
    return page


def figures(rows: Sequence[Row]) -> str:
    """The table of what is measured."""
    faults, healthy = fault_rows(rows), healthy_rows(rows)
    narrow = [row for row in faults if not row["widened"]]
    lines = ["| | result (95 % interval) |", "|---|---|"]
    kinds, stories = len({row["kind"] for row in faults}), len({row["story"] for row in faults})
    lines.append(f"| runs with a fault | {len(faults)}, of {kinds} kinds, in {stories} programs |")
    lines.append(
        f"| **strict: outcome, cause, ranks and line all right** | **{share(count(faults, HIT), len(faults))}** |"
    )
    lines += [f"| {part} right | {share(sum(r['score'][part] for r in faults), len(faults))} |" for part in PARTS]
    lines.append(f"| strict, without runs whose truth was widened | {share(count(narrow, HIT), len(narrow))} |")
    lines.append(f"| an innocent rank, or a wrong cause | {share(count(faults, FALSE_ACCUSATION), len(faults))} |")
    lines.append(f"| undecided | {share(count(faults, UNDECIDED), len(faults))} |")
    accused = count(healthy, FALSE_ACCUSATION)
    lines.append(f"| healthy runs accused | {share(accused, len(healthy))} |")
    lines.append(f"| healthy runs called clean | {share(count(healthy, HIT), len(healthy))} |")
    times = proven_times(rows)
    if times:
        middle = statistics.median(times)
        lines.append(
            f"| from the fault to the report, proven hangs | median {middle:.1f} s, worst {times[-1]:.1f} s, n={len(times)} |"
        )
    left_out = sum(row["score"]["result"] == NOT_RUN for row in rows)
    if left_out:
        lines.append(f"| runs in which the fault did not happen, left out | {left_out} |")
    return "\n".join(lines)


def families(rows: Sequence[Row]) -> str:
    """The table by family of cause."""
    lines = ["| what is wrong | strict (95 % interval) | kinds |", "|---|---|---|"]
    for name, _ in FAMILIES:
        mine = [row for row in fault_rows(rows) if family_of(row) == name]
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(Counter(row["kind"] for row in mine).items()))
        if mine:
            lines.append(f"| {name} | {share(count(mine, HIT), len(mine))} | {kinds} |")
    return "\n".join(lines)


def misses(rows: Sequence[Row]) -> str:
    """Every run that was not right, with the reason that somebody found."""
    notes = tomllib.loads((HERE / "notes.toml").read_text())
    missed = sorted((r for r in rows if r["score"]["result"] not in (HIT, NOT_RUN)), key=lambda row: row["name"])
    if not missed:
        return "None."
    lines = ["| run | fault | said | result | reason |", "|---|---|---|---|---|"]
    for row in missed:
        said = row["said"]
        where = f", {said['line'][0]}:{said['line'][1]}" if said["line"] else ""
        answer = f"{said['outcome']}, {said['cause'] or 'nothing'}, ranks {said['ranks']}{where}"
        reason = notes.get(row["name"], "not looked into yet")
        lines.append(f"| {row['name']} | `{row['fault']}` | {answer} | {row['score']['result']} | {reason} |")
    return "\n".join(lines)


def peer_table(rows: Sequence[Row], peer_rows: Sequence[Row]) -> str:
    """The tools on the same runs."""
    names = {row["name"] for row in peer_rows}
    ours = [row for row in fault_rows(rows) if row["name"] in names]
    lines = [
        "| tool | n | strict | cause | ranks | line | only innocent ranks | median s until it speaks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tool in ("unhang run", *TOOLS):
        mine = ours if tool == "unhang run" else [row for row in fault_rows_of(peer_rows) if row["tool"] == tool]
        if not mine:
            continue
        after = [row.get("verdict_after_s", row.get("after_s")) for row in mine]
        known = [s for s in after if s is not None]
        cells = [share(count(mine, HIT), len(mine))]
        cells += [str(sum(row["score"][part] for row in mine)) for part in ("cause", "ranks", "line")]
        cells += [str(count(mine, FALSE_ACCUSATION)), f"{statistics.median(known):.1f}" if known else "-"]
        lines.append(f"| {tool} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines) if names else "The peers have not been run."


def fault_rows_of(peer_rows: Sequence[Row]) -> list[Row]:
    """The rows of the peers in which the fault happened."""
    return [row for row in peer_rows if row["score"]["result"] != NOT_RUN]


def reproduce_text(made: Sequence[Row]) -> str:
    """How often a hang became a program."""
    if not made:
        return "The reproductions have not been run."
    right = [row for row in made if row["is_right"]]
    seconds = sorted(row["seconds"] for row in made)
    text = f"{share(len(right), len(made))} of the hangs became such a program; median {statistics.median(seconds):.0f} s, worst {seconds[-1]:.0f} s"
    failed = [
        f"{row['name']} ({row['said'].strip().splitlines()[-1][:160] if row['said'] else row['exit_code']}, "
        f"{row['lines']} lines, {row['seconds']:.0f} s)"
        for row in made
        if not row["is_right"]
    ]
    return text + ("; not: " + "; ".join(failed) if failed else "") + "."


def bars(rows: Sequence[Row], peer_rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Name, hits and runs of each bar: the families, then the tools on the sample."""
    found = []
    for name, _ in FAMILIES:
        mine = [row for row in fault_rows(rows) if family_of(row) == name]
        if mine:
            found.append((f"unhang: {name}", count(mine, HIT), len(mine)))
    names = {row["name"] for row in peer_rows}
    ours = [row for row in fault_rows(rows) if row["name"] in names]
    if ours:
        found.append(("sample: unhang", count(ours, HIT), len(ours)))
    for tool in TOOLS:
        theirs = [row for row in fault_rows_of(peer_rows) if row["tool"] == tool]
        if theirs:
            found.append((f"sample: {tool}", count(theirs, HIT), len(theirs)))
    return found


def plot(found: Sequence[tuple[str, int, int]]) -> str:
    """Bars with intervals, as SVG."""
    left, width, high = 210, 420, 24
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 120}" height="{high * len(found) + 40}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{left + width + 120}" height="{high * len(found) + 40}" fill="white"/>',
    ]
    for number, (name, hits, of) in enumerate(found):
        low, top = wilson(hits, of)
        y = 8 + number * high
        colour = "#2b6cb0" if "unhang" in name else "#a0aec0"
        text += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{width * hits / of:.1f}" height="14" fill="{colour}"/>',
            f'<line x1="{left + width * low:.1f}" x2="{left + width * top:.1f}" y1="{y + 9}" y2="{y + 9}" stroke="black"/>',
            f'<text x="{left + width + 10}" y="{y + 13}">{hits} of {of}</text>',
        ]
    bottom = 8 + high * len(found)
    for tick in (0, 25, 50, 75, 100):
        x = left + width * tick / 100
        text.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{tick} %</text>')
        text.append(f'<line x1="{x}" x2="{x}" y1="6" y2="{bottom}" stroke="#cbd5e0" stroke-dasharray="2 3"/>')
    return "\n".join([*text, "</svg>"]) + "\n"
