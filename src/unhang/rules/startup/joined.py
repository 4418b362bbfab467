"""Who came to the start, as the barriers over the store tell it."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.rules.startup.start_rule import has_other_error, seen

_DEFAULT_KEYS = ("", "0", "1", "default_pg")
MAX_NAMED_WORLD = 4096
MOST_AFTER = 10


def is_default(event: LogEvent) -> bool:
    """Whether a barrier is the one of the first process group; torch numbered it 1 up to 2.0."""
    return event["key"] in _DEFAULT_KEYS


def least_joined(s: Situation) -> list[LogEvent]:
    """The barriers that ended, or that the log leaves, with fewer ranks than the world. Silent where any counts too many."""
    timed_out, waiting = seen(s, "store.barrier_timed_out"), s.events.of("store.barrier_waiting")
    if any(_missing(e) < 0 for e in (*timed_out, *waiting)):
        return []
    short = [e for e in timed_out if _missing(e) > 0]
    if short:
        return sorted(short, key=lambda e: not is_default(e))
    done = {e["key"] for e in s.events.of("store.barrier_done")}
    last = {e["key"]: e for e in waiting if e["key"] not in done}
    open_end = {key for key, e in last.items() if _missing(e) > 0 and is_default(e)}
    again = [e for e in waiting if e["key"] in open_end]
    return again if len(again) > 1 else []


def last_members(s: Situation) -> list[LogEvent]:
    """The members that announced themselves, where the log ends with that and they are fewer than the world."""
    members = list(s.events.of("launchers.member"))
    if not members or has_other_error(s) or any(e.says for e in s.events):
        return []
    after = [line for line in s.case.log[members[-1].order + 1 :] if line.text.strip()]
    world = members[-1].number("world_size") or 0
    return members if len(after) <= MOST_AFTER and len({e.rank for e in members}) < world else []


def missing_ranks(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The rest of the world, where the ranks that reported are exactly as many as the barrier of the first group counts."""
    members = [e for e in events if e.kind == "launchers.member"]
    if members:
        world, came = members[-1].number("world_size") or 0, {e.rank for e in members}
        return tuple(r for r in range(world) if r not in came) if world <= MAX_NAMED_WORLD else ()
    counted = [e for e in events if e.kind.startswith("store.barrier") and is_default(e)]
    if not counted:
        return ()
    world, joined = counted[-1].number("world_size") or 0, counted[-1].number("joined") or 0
    came = {e.rank for e in s.events.of("store.barrier_timed_out", "store.barrier_waiting") if is_default(e)} - {None}
    if len(came) != joined or not 0 < world <= MAX_NAMED_WORLD:
        return ()
    return tuple(r for r in range(world) if r not in came)


def other_sizes(s: Situation) -> list[str]:
    """The numbers of processes per node that launchers print, where they differ."""
    told = {e["value"] for e in s.events.of("elastic.launch_config") if e["name"] == "nproc_per_node"}
    return sorted(told) if len(told) > 1 else []


def _missing(event: LogEvent) -> int:
    world, joined = event.number("world_size"), event.number("joined")
    return world - joined if world is not None and joined is not None else 0
