"""Membership of the process groups: gloo's flight recorder loses it, so it is written when a group is made."""

from __future__ import annotations

import time
from typing import Any

from .recording import Recording, attempt
from .writing import append_json


def name_of(c10d: Any, group: Any) -> str:
    """The group's name as the flight recorder has it; '0' is the default group."""
    if group is None:
        group = c10d.GroupMember.WORLD
    return str(c10d._world.pg_names.get(group, ""))


def write_new(rec: Recording, c10d: Any, timeout: Any) -> None:
    """Append a line for every group of this rank that has none yet."""
    for group, name in list(c10d._world.pg_names.items()):
        if name not in rec.groups_written:
            rec.groups_written.add(name)
            append_json(rec.path("groups.jsonl"), _describe(c10d, group, name, timeout))


def _describe(c10d: Any, group: Any, name: str, timeout: Any) -> dict[str, Any]:
    backend = attempt("backend of a group", lambda: str(c10d._world.pg_map[group][0])) or ""
    return {
        "pg_name": str(name),
        "pg_desc": attempt("name of a group", lambda: str(group.group_desc)) or "",
        "ranks": attempt("ranks of a group", c10d.get_process_group_ranks, group) or [],
        "timeout_s": attempt("timeout of a group", _timeout_s, c10d, backend, timeout),
        "backend": backend,
        "created_ns": time.time_ns(),
    }


def _timeout_s(c10d: Any, backend: str, timeout: Any) -> float | None:
    if timeout is None:
        timeout = c10d._get_default_timeout(c10d.Backend(backend))
    return float(timeout.total_seconds())
