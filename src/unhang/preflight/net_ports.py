"""The ports that the job needs on this host: free, or held by whom."""

from __future__ import annotations

import os
from collections.abc import Iterator

from unhang.model import Reading, Unavailable
from unhang.model.readings import Value
from unhang.preflight.context import Context
from unhang.probe.ports import listeners_on, why_not_free
from unhang.probe.ports_holder import Holder, ancestors_of, holders_of

MASTER, ASKED, DEFAULT = "MASTER_PORT", "asked", "default"
_DEFAULT_PORT, _SCAN_LIMIT_S = 29500, 1.5


def ports_of(context: Context) -> dict[int, str]:
    """Port -> why it is looked at. The master's port matters where rank 0 runs; torchrun's default where none is known."""
    member = context.member
    ports = dict.fromkeys(context.options.ports, ASKED)
    if not member.port:
        ports.setdefault(_DEFAULT_PORT, DEFAULT)
    elif member.rank == 0:
        ports[member.port] = MASTER
    return ports


def read_ports(context: Context) -> Iterator[Reading | Unavailable]:
    """One reading `network.port` per port."""
    for port, role in ports_of(context).items():
        reason = why_not_free(port)
        fields: dict[str, Value] = {"role": role, "is_free": not reason, "is_ours": False}
        if reason:
            try:
                fields |= _held(port) | {"reason": reason}
            except OSError as error:
                yield Unavailable("network.holder", f"who holds port {port} cannot be told: {error}")
        yield Reading("network.port", str(port), fields)


def _held(port: int) -> dict[str, Value]:
    """Who holds it."""
    listeners = listeners_on(port)
    holders = holders_of([listener.inode for listener in listeners], _SCAN_LIMIT_S)
    fields: dict[str, Value] = {"listens": bool(listeners)}
    if listeners:
        fields |= {"address": listeners[0].address, "uid": listeners[0].uid}
    if not holders:
        return fields
    own = set(ancestors_of(os.getpid()))
    return fields | _told(_keeper(holders)) | {"is_ours": any(holder.pid in own for holder in holders)}


def _keeper(holders: tuple[Holder, ...]) -> Holder:
    """Of several that share the socket (a fork keeps it) the one that was there first."""
    return holders[0]


def _told(holder: Holder) -> dict[str, Value]:
    return {
        "pid": holder.pid,
        "command": holder.command,
        "user": holder.user,
        "age_s": round(holder.age_s),
        "parent_pid": holder.parent_pid,
        "parent": (holder.parent.split() or [""])[0].rpartition("/")[2],
        "rank_of_holder": holder.rank,
        "run_id": holder.run_id,
        "is_orphan": holder.is_orphan,
        "started_ticks": holder.started_ticks,
    }
