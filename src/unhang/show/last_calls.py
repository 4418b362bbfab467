"""The last recorded call of every rank, equal ones folded: what the evidence shows when no rule has an opinion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unhang.model import CallState, Case


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
    rank_N = table["rank"]
    order = np.lexsort((table["record_id"], rank_N))
    ends = order[np.flatnonzero(np.diff(rank_N[order], append=rank_N[order[-1]] + 1))]
    found: dict[tuple[str, str], list[int]] = {}
    for row in ends:
        group = table.groups[int(table["group"][row])]
        what = f"{table.ops[int(table['op'][row])]} #{int(table['seq'][row])} of {group}"
        state = CallState(int(table["state"][row])).name.lower()
        found.setdefault((what, state), []).append(int(rank_N[row]))
    calls = [LastCall(what, state, tuple(ranks)) for (what, state), ranks in found.items()]
    return tuple(sorted(calls, key=lambda c: (-len(c.ranks), c.ranks)))
