"""Rules on what an earlier start left behind, so that the next one cannot work."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.analyze.failures import is_communication_error
from unhang.analyze.situation import Situation
from unhang.model import Case, RankEvidence
from unhang.rules.base import Found, rule
from unhang.rules.job.rendezvous import BARRIERS, excess
from unhang.rules.log_lines import found_in
from unhang.rules.start import still_starting, sure_beside

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # each attempt gets a store of its own
_REFUSED = "Connection refused"
_BY_LAUNCHER = (None, -2, -9, -15)


@rule("stale-store")
def stale_store(s: Situation) -> Iterator[Found]:
    """Addresses of the attempt before; else counts beyond the world, of ranks within it, surer with a sign of the earlier run."""
    if (found := _old_addresses(s)) is not None:
        yield found
        return
    counted = [e for e in s.events.of(*BARRIERS) if excess(e) > 0]
    events = still_starting(s, counted)
    if not events or any((e.rank or 0) >= (e.number("world_size") or 0) for e in counted):
        return
    worst = max(events, key=excess)
    joined, world = worst.number("joined") or 0, worst.number("world_size") or 1
    starts = f"{joined} is {joined // world} times {world}: the store was there for {joined // world} starts. "
    before = "The file of the store was there before this run. " if s.events.has("store.file_exists") else ""
    signs = s.events.has("store.file_exists", "elastic.restarting", "elastic.restart_count")
    words = {"joined": worst["joined"], "world_size": worst["world_size"], "world": world}
    words["runs"] = (starts if joined % world == 0 else "") + before
    fixes = ("new place", "first failure")
    yield found_in(s, events, sure_beside(s, 0.95 if signs else 0.88), (), words=words, fixes=fixes)


def _old_addresses(s: Situation) -> Found | None:
    """After a restart gloo's first connection is refused, and no rank of this attempt had ended before that."""
    refused = [e for e in s.events.of("gloo.connect_failed") if _REFUSED in e["reason"]]
    if not refused or not s.case.attempt or s.case.job.environment.get(_OWN_STORE) == "1":
        return None
    if any(_has_gone(e) for e in s.case.ranks.values()):
        return None
    before = next((c for c in reversed(s.case.earlier) if _has_come(c)), None)
    if before is None or before.world != s.case.world:
        return None  # nobody had published an address, or others are asked for theirs now
    words = {"attempt": s.case.attempt, "before": before.attempt, "world": len(s.case.world)}
    fixes = ("own store", "first failure")
    sure = 0.95 if set(s.case.ranks) == set(s.case.world) else 0.85
    return found_in(s, refused, sure, (), words=words, say="restart", fixes=fixes)


def _has_gone(evidence: RankEvidence) -> bool:
    """Whether a rank ended in another way than by the refusal, or by what a launcher does after it: nobody listens at its address."""
    if evidence.error is not None:
        return _REFUSED not in evidence.error.message and not is_communication_error(evidence.error)
    return evidence.exit is not None and evidence.exit.code not in _BY_LAUNCHER


def _has_come(case: Case) -> bool:
    """Whether a rank of an attempt had come out of init_process_group: then all had published their addresses."""
    return any(e.initialized for e in case.ranks.values())
