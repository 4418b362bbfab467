"""Rules on the collectives that `unhang check` ran."""

from __future__ import annotations

from unhang.analyze.situation import Situation
from unhang.rules.base import Found, rule
from unhang.rules.readings import cite, ranks_of


@rule("checked-collective-failed", reads=("collectives.suite",))
def checked_collective_failed(s: Situation) -> Found | None:
    """All failures: the first one, and whom they accuse together."""
    failures = s.readings.of("collectives.failure")
    if not failures:
        return None
    blamed = s.readings.of("collectives.blame")
    ranks, first = ranks_of(blamed), failures[0]
    why = [b.text("because") for b in blamed[:1]] or [first.text("because")]
    words = {
        "who": f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: " if ranks else "",
        "which": first.subject,
        "more": f" (and {len(failures) - 1} more)" if len(failures) > 1 else "",
        "why": why[0] or "The ranks stand alike",
        "unsure": "" if ranks else "The evidence does not tell which rank is at fault. ",
    }
    victims = s.others(ranks) if ranks else ()
    return Found(0.96, ranks, cite((*failures, *blamed)), words, first.text("verdict"), victims=victims)
