"""Where ranks are: stacks beside each other and merged into one tree, lines of the program, last recorded calls; and one row per rank. Pure and quick."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unhang.model import (
    CallState,
    Case,
    CollectiveCall,
    CollectiveTable,
    Finding,
    Frame,
    Location,
    ProcessExit,
    RankEvidence,
    WaitsFor,
    user_frames,
)
from unhang.model.findings import name_ranks
from unhang.numeric import np, npt

Frames = tuple[Frame, ...]
_MOST_NATIVE = 12
_TEMPLATE = re.compile(r"[<(].*")


@dataclass(frozen=True, slots=True)
class ShownStack:
    """A stack under a title. `frames` are outermost first, as in a traceback."""

    title: str
    ranks: tuple[int, ...]
    frames: Frames


def frames_of(evidence: RankEvidence | None) -> tuple[str, Frames]:
    """Where a rank is, and how that is known; innermost first. What ended a rank speaks before what it was doing."""
    if evidence is None:
        return "", ()
    if evidence.error and evidence.error.frames:
        return f"raised {evidence.error.type} here", evidence.error.frames
    if evidence.exit and evidence.exit.frames:
        return f"{how_it_ended(evidence.exit)} here", evidence.exit.frames
    stack = evidence.main_stack or next(iter(evidence.stacks), None)
    return ("was here" if evidence.exit else "is here", stack.frames) if stack else ("", ())


def how_it_ended(end: ProcessExit) -> str:
    """The end of a process in a few words; a signal by its name."""
    if end.kind == "exit":
        return "ran to its end" if not end.code else f"exited with code {end.code}"
    if end.kind == "vanished":
        return "vanished"
    if end.code is not None and end.code < 0:
        try:
            return f"ended by {signal.Signals(-end.code).name}"
        except ValueError:
            return f"ended by signal {-end.code}"
    return f"ended by {end.kind}" + ("" if end.code is None else f" with code {end.code}")


def where(evidence: RankEvidence | None) -> str:
    """Where a rank is, in a few words; empty where nothing is known."""
    if evidence is None:
        return "left no evidence"
    if evidence.error:
        return f"raised {evidence.error.type}" + _at(evidence.error.frames)
    if evidence.exit:
        return how_it_ended(evidence.exit) + _at(evidence.exit.frames)
    if evidence.state and evidence.state.state in ("T", "Z", "gone"):
        return {"T": "stopped", "Z": "dead", "gone": "gone"}[evidence.state.state]
    _, frames = frames_of(evidence)
    user = user_frames(frames)
    return f"in {user[0].function}() at {_place(user[0])}" if user else ""


def _place(frame: Frame) -> str:
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}"


def _at(frames: Frames) -> str:
    user = user_frames(frames)
    return f" at {_place(user[0])}" if user else ""


def expected_call(case: Case, finding: Finding) -> CollectiveCall | None:
    """The call that the culprit did not make, as one of its peers made it."""
    name, seq = (finding.process_group or {}).get("pg_name"), (finding.collective or {}).get("seq")
    table = case.calls
    group = next((i for i, g in enumerate(table.groups) if g.name == name), None)
    if group is None or not isinstance(seq, int) or not len(table):
        return None
    mask = (table["group"] == group) & (table["seq"] == seq) & ~np.isin(table["rank"], finding.culprit_ranks)
    calls = [table.call(int(row)) for row in np.flatnonzero(mask)[:64] if not table["is_p2p"][row]]
    op = (finding.collective or {}).get("op")
    calls.sort(key=lambda call: (call.op != op, call.frames is None, call.rank))
    return calls[0] if calls else None


def _frames_at(evidence: RankEvidence | None, location: Location | None) -> tuple[str, Frames]:
    """Where a rank is: in the thread that is at the location, if the main thread is not."""
    how, frames = frames_of(evidence)
    if evidence is None or location is None or evidence.error or (evidence.exit and evidence.exit.frames):
        return how, frames
    at = {(location.file, location.line)}
    if at & {(f.file, f.line) for f in frames}:
        return how, frames
    threads = [(f"thread {t.name}", t.frames) for t in evidence.stacks]
    for name, inner in (*threads, *((f"task {t.name}", t.frames) for t in evidence.tasks)):
        if at & {(f.file, f.line) for f in inner}:
            return f"{'was' if evidence.exit else 'is'} here in its {name}", inner
    return how, frames


def native_rows(case: Case) -> list[tuple[str, str]]:
    """What the main threads are in below Python, innermost first, the ranks that are in the same together."""
    found: dict[str, list[int]] = {}
    for rank, evidence in sorted(case.ranks.items()):
        if evidence.native:
            upper = next((i for i, f in enumerate(evidence.native) if f.file.endswith(".py")), len(evidence.native))
            below = [f for f in evidence.native[:upper] if not f.function.startswith("pybind11::")][:_MOST_NATIVE]
            told = [f"{_TEMPLATE.sub('', f.function)} ({f.file.rpartition('/')[2]})" for f in below]
            found.setdefault(" < ".join(told) or "no frame below Python", []).append(rank)
    return [(name_ranks(ranks, 4), told) for told, ranks in found.items()]


def _culprit_stack(case: Case, finding: Finding) -> ShownStack | None:
    for rank in finding.culprit_ranks[:16]:
        how, frames = _frames_at(case.ranks.get(rank), finding.location)
        if not frames:
            rows = case.calls.rank_rows(rank)
            call = case.calls.call(rows.stop - 1) if rows.stop > rows.start else None
            how, frames = (f"made its last call here: {call}", call.frames or ()) if call else ("", ())
        if frames:
            return ShownStack(f"rank {rank} {how}", (rank,), tuple(reversed(frames)))
    return None


def _expected_stack(case: Case, finding: Finding) -> ShownStack | None:
    call = expected_call(case, finding)
    if call is not None and call.frames:
        return ShownStack(f"rank {call.rank} called {call} here", (call.rank,), tuple(reversed(call.frames)))
    for rank in finding.victim_ranks[:16]:
        how, frames = frames_of(case.ranks.get(rank))
        if frames:
            return ShownStack(f"rank {rank} {how}", (rank,), tuple(reversed(frames)))
    return None


def compared(case: Case, finding: Finding) -> tuple[ShownStack | None, ShownStack | None]:
    """The culprit's stack and its peers' call, each None where it was not recorded."""
    return _culprit_stack(case, finding), _expected_stack(case, finding)


@dataclass(slots=True)
class StackNode:
    """One frame of the merged tree and the ranks that are in it."""

    frame: Frame
    ranks: list[int] = field(default_factory=list)
    children: dict[Frame, StackNode] = field(default_factory=dict)


def interesting(frames: Iterable[Frame]) -> Frames:
    """The user's frames and the library call that the innermost of them made; outermost first."""
    inner = tuple(frames)
    first = next((i for i, f in enumerate(inner) if f.is_user), None)
    if first is None:
        return tuple(reversed(inner[:3]))
    called = inner[first - 1 : first] if first else ()
    path = (*reversed(user_frames(inner)), *called)
    return path if len(path) <= 40 else (*path[:10], *path[-30:])


def merged_stacks(case: Case) -> tuple[list[StackNode], tuple[int, ...]]:
    """The ranks' main stacks as prefix trees, outermost frame first, and the ranks without a stack."""
    top: dict[Frame, StackNode] = {}
    without: list[int] = []
    classes: dict[Frames, list[int]] = {}
    for rank in case.world:
        _, frames = frames_of(case.ranks.get(rank))
        (classes.setdefault(frames, []) if frames else without).append(rank)
    for frames, ranks in classes.items():
        level = top
        for frame in interesting(frames):
            node = level.setdefault(frame, StackNode(frame))
            node.ranks.extend(ranks)
            level = node.children
    return list(top.values()), tuple(without)


def flat_tree(nodes: Sequence[StackNode], depth: int = 0) -> list[tuple[int, StackNode]]:
    """The tree as (depth, node) lines; a chain of only children stays at one depth, so only forks indent."""
    lines: list[tuple[int, StackNode]] = []
    for node in sorted(nodes, key=lambda n: (-len(n.ranks), min(n.ranks))):
        lines.append((depth, node))
        children = list(node.children.values())
        splits = len(children) > 1 or (len(children) == 1 and len(children[0].ranks) < len(node.ranks))
        lines.extend(flat_tree(children, depth + 1 if splits else depth))
    return lines


@dataclass(frozen=True, slots=True)
class LastCall:
    """Ranks whose last recorded call is the same."""

    what: str
    state: str
    ranks: tuple[int, ...]


def last_calls(case: Case) -> tuple[LastCall, ...]:
    """One entry per distinct last call, the largest set of ranks first."""
    table = case.calls
    if not len(table):
        return ()
    found: dict[tuple[str, str], list[int]] = {}
    for row in _last_rows(table):
        group = table.groups[int(table["group"][row])]
        what = f"{table.ops[int(table['op'][row])]} #{int(table['seq'][row])} of {group}"
        state = CallState(int(table["state"][row])).name.lower()
        found.setdefault((what, state), []).append(int(table["rank"][row]))
    calls = [LastCall(what, state, tuple(ranks)) for (what, state), ranks in found.items()]
    return tuple(sorted(calls, key=lambda c: (-len(c.ranks), c.ranks)))


def _last_rows(table: CollectiveTable) -> npt.NDArray[np.int64]:
    """The row of the last call of each rank."""
    order = np.lexsort((table["record_id"], table["rank"]))
    rank_N = table["rank"][order]
    return order[np.flatnonzero(np.diff(rank_N, append=rank_N[-1] + 1))]


_MOST_BYTES = 1_000_000
_KINDS = (".py", ".pyx", ".pyi")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line with its number; `is_it` marks the line that was asked for."""

    number: int
    text: str
    is_it: bool


def _read(path: str) -> Sequence[str]:
    """The lines of a small regular Python file.

    Paths come from dumps that others made: nothing but Python source is ever copied into a report, and never from
    a device or a kernel file system.
    """
    real = os.path.realpath(path)
    if not path.endswith(_KINDS) or not real.endswith(_KINDS) or not os.path.isabs(path):
        return ()
    if real.startswith(("/proc/", "/sys/", "/dev/")):
        return ()
    try:
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return ()
        with open(real, "rb") as file:
            data = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ()
    return () if b"\0" in data else data.decode("utf-8", "replace").splitlines()


def source_around(path: str, line: int, around: int = 4) -> tuple[SourceLine, ...]:
    """The line with its neighbours, or nothing where the file is not readable here.

    Blocks: for the time of one read of at most 1 MB.
    """
    lines = _read(path) if line > 0 and "\0" not in path else ()
    if not 0 < line <= len(lines):
        return ()
    first, last = max(1, line - around), min(len(lines), line + around)
    return tuple(SourceLine(n, lines[n - 1][:300], n == line) for n in range(first, last + 1))


def line_of(frame: Frame) -> str:
    """The line of the user's code that a frame is in; "" for a library's, or where the file is not readable here."""
    return next((s.text.strip() for s in source_around(frame.file, frame.line, 0)), "") if frame.is_user else ""


def short_place(frame: Frame) -> str:
    """File and line of a frame: of a library's within it, of one below the working folder from there."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in frame.file:
            return f"{frame.file.split(mark, 1)[1]}:{frame.line}"
    here = f"{os.getcwd()}/" if frame.file.startswith("/") else ""
    return f"{frame.file.removeprefix(here)}:{frame.line}"


COLUMNS = ("Rank", "Host", "Process", "State", "Last call", "Line", "Memory, MB")
_STATES = {"T": "stopped", "Z": "dead", "gone": "gone", "D": "in the kernel, uninterruptible"}


def _state(
    rank: int, evidence: RankEvidence | None, case: Case, waiting: frozenset[int], awaited: frozenset[int]
) -> str:
    if evidence is None and rank not in waiting:
        return "not seen from here" if rank in case.out_of_sight else "no evidence"
    if evidence is not None:
        if evidence.error:
            return f"raised {evidence.error.type}"
        if evidence.exit:
            return how_it_ended(evidence.exit)
        if evidence.state and evidence.state.state in _STATES:
            return _STATES[evidence.state.state]
    if rank in waiting:
        return "waits"
    return "runs" if evidence and evidence.state else "others wait for it" if rank in awaited else ""


def _last_calls(case: Case) -> dict[int, tuple[str, tuple[Frame, ...]]]:
    """What each rank called last, with its frames; a call is named once for all ranks that made it."""
    calls = case.calls
    if not len(calls):
        return {}
    ends = _last_rows(calls)
    columns = [calls[name][ends].tolist() for name in ("rank", "op", "seq", "group", "state", "frames")]
    names = [str(group) for group in calls.groups]
    found = {}
    for rank, op, seq, group, state, stack in zip(*columns, strict=True):
        said = f"{calls.ops[op]} #{seq} of {names[group]}, {CallState(state).name.lower()}"
        found[rank] = (said, calls.stacks[stack] if stack >= 0 else ())
    return found


def _line(evidence: RankEvidence | None, called: Sequence[Frame]) -> str:
    user = user_frames(frames_of(evidence)[1]) or user_frames(called)
    return f"{user[0]}()" if user else ""


def rank_rows(case: Case, waits: WaitsFor) -> list[tuple[int, str, int | None, str, str, str, int | None]]:
    """The rows in order of ranks, with the columns of COLUMNS; memory in MB (10^6 bytes), None where it is not known."""
    waiting, awaited = frozenset(waits.waiting), frozenset(waits.roots)
    last = _last_calls(case)
    rows = []
    for rank in sorted({*case.world, *last}):
        evidence = case.ranks.get(rank)
        call, frames = last.get(rank, ("", ()))
        under_way = [p for p in (evidence.pending if evidence else ()) if p.ended_ns is None]
        if under_way:
            call = f"{under_way[-1].kind} #{under_way[-1].index}, started"
        held = evidence.state.rss_bytes if evidence and evidence.state else None
        host, pid = (evidence.identity.host, evidence.identity.pid) if evidence else ("", None)
        state = _state(rank, evidence, case, waiting, awaited)
        megabytes = None if held is None else round(held / 1e6)
        rows.append((rank, host, pid, state, call, _line(evidence, frames), megabytes))
    return rows


def rank_columns(rows: Iterable[Sequence[Any]]) -> Mapping[str, Any]:
    """The rows as columns for the page's script: numbers as they are, texts as numbers of distinct ones. Empty columns are left out."""
    columns = []
    for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=False):
        if all(value in ("", None) for value in values):
            continue
        if any(isinstance(value, str) for value in values):
            texts = list(dict.fromkeys(values))
            numbers = {text: number for number, text in enumerate(texts)}
            columns.append({"name": name, "texts": texts, "values": [numbers[value] for value in values]})
        else:
            columns.append({"name": name, "values": list(values)})
    return {"columns": columns}
