"""The nodes that lines come from, in words."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.model import LogEvent

MOST_NAMED = 3


def on_nodes(events: Iterable[LogEvent]) -> str:
    """` on node-a`, ` on node-a and 4 other nodes`; nothing where no line tells its host."""
    hosts = list(dict.fromkeys(e.host for e in events if e.host))
    if len(hosts) > MOST_NAMED:
        return f" on {hosts[0]} and {len(hosts) - 1} other nodes"
    return f" on {', '.join(hosts)}" if hosts else ""
