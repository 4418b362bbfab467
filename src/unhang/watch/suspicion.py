"""What a situation says of a suspected hang: who is concerned, and why in one line."""

from __future__ import annotations

from unhang.analyze.situation import Situation


def waits_for_stopped(s: Situation) -> bool:
    """Whether all that the others wait for are processes stopped by a signal: no patience makes them go on.

    Not those that a debugger has stopped (state t).
    """
    roots = [s.case.ranks.get(r) for r in s.waits.roots]
    return bool(roots) and all(e is not None and e.state is not None and e.state.state == "T" for e in roots)


def all_in_init(s: Situation) -> set[int]:
    """All ranks, if every one has come to init_process_group and is still in it."""
    under_way = {
        r
        for r, e in s.case.ranks.items()
        if any(c.kind == "init_process_group" and c.ended_ns is None for c in e.pending)
    }
    return under_way if under_way == set(s.case.world) else set()


def reason(s: Situation) -> str:
    """One line on why: the first wait."""
    edge = next((e for e in s.waits.edges if e.targets), None)
    if edge is None and all_in_init(s):
        return "all ranks are in init_process_group, and it does not end"
    return f"rank {edge.waiter} waits in {edge.what}" if edge else "a process does not end"


def missing_in_rendezvous(s: Situation) -> set[int]:
    """Ranks that the others wait for in init_process_group."""
    return {t for e in s.waits.edges if e.kind == "rendezvous" for t in e.targets}
