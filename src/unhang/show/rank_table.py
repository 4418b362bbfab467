"""One row per rank: who it is, what became of it, its last call, and the line that it is at. Pure, and quick for 16,384 ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unhang.model import CallState, Case, Frame, RankEvidence, WaitsFor, user_frames
from unhang.numeric import np
from unhang.show.stacks import frames_of, how_it_ended

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
    order = np.lexsort((calls["record_id"], calls["rank"]))
    rank_N = calls["rank"][order]
    ends = order[np.flatnonzero(np.diff(rank_N, append=rank_N[-1] + 1))]
    columns = [calls[name][ends].tolist() for name in ("rank", "op", "seq", "group", "state", "frames")]
    names = [str(group) for group in calls.groups]
    found = {}
    for rank, op, seq, group, state, stack in zip(*columns, strict=True):
        said = f"{calls.ops[op]} #{seq} of {names[group]}, {CallState(state).name.lower()}"
        found[rank] = (said, calls.stacks[stack] if stack >= 0 else ())
    return found


def _line(evidence: RankEvidence | None, called: Sequence[Frame]) -> str:
    user = user_frames(frames_of(evidence)[1]) or user_frames(called)
    return f"{user[0].file.rsplit('/', 1)[-1]}:{user[0].line} in {user[0].function}()" if user else ""


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
        bytes_held = evidence.state.rss_bytes if evidence and evidence.state else None
        rows.append(
            (
                rank,
                evidence.identity.host if evidence else "",
                evidence.identity.pid if evidence else None,
                _state(rank, evidence, case, waiting, awaited),
                call,
                _line(evidence, frames),
                None if bytes_held is None else round(bytes_held / 1e6),
            )
        )
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
