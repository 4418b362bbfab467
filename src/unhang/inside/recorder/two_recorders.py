"""One dump of the two flight recorders of a torch for CUDA: ProcessGroupNCCL's own, and that of all other backends.

Each numbers its groups and its calls for itself, so that the same number means two groups. And a group for several devices
("cpu:gloo,cuda:nccl") has one name and two sequences of calls: those that are not NCCL's are given a name of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

APART = 1 << 16  # the numbers of the others' groups begin here, where NCCL has groups, too
_OF_ONE_BACKEND = ("nccl", "gloo", "")
Dump = dict[str, Any]


def groups_in(path: str) -> dict[str, dict[str, Any]]:
    """The lines of groups.jsonl by the name of the group."""
    try:
        with open(path, encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return {}
    return {str(group.get("pg_name", "")): group for group in found if isinstance(group, dict)}


def statuses(of_nccl: Dump, of_others: Dump) -> dict[int, dict[str, Any]]:
    """`pg_status` of both, by number."""
    first = of_nccl.get("pg_status") or {}
    found = {int(number): counts for number, counts in first.items()}
    found.update({int(n) + APART * bool(first): counts for n, counts in (of_others.get("pg_status") or {}).items()})
    return found


def merged(of_nccl: Dump, of_others: Dump, groups: Mapping[str, Mapping[str, Any]]) -> Dump:
    """Both in one, in the order in which the calls were made. `groups`: what is known of them by name: their backend and ranks.

    A group that two backends serve is called `NAME@gloo` in what the others recorded, on each rank, whatever it has called so far.
    """
    several = {name for name, group in groups.items() if group.get("backend") not in _OF_ONE_BACKEND}
    others = _renamed(of_others, several | (_names(of_nccl) & _names(of_others)), groups)
    if not of_nccl.get("entries") and not of_nccl.get("pg_status"):
        return others
    entries = [*(of_nccl.get("entries") or ())]
    entries += [{**e, "pg_id": int(e.get("pg_id", 0)) + APART} for e in others.get("entries") or ()]
    first = sum(min((int(e.get("record_id", 0)) for e in d.get("entries") or ()), default=0) for d in (of_nccl, others))
    entries.sort(key=itemgetter("time_created_ns"))
    return {
        **others,
        **of_nccl,
        "pg_config": {**(others.get("pg_config") or {}), **(of_nccl.get("pg_config") or {})},
        "pg_status": {str(number): counts for number, counts in statuses(of_nccl, others).items()},
        "entries": [{**entry, "record_id": first + at} for at, entry in enumerate(entries)],
    }


def _names(dump: Dump) -> set[str]:
    return {str(entry["process_group"][0]) for entry in dump.get("entries") or ()}


def _renamed(dump: Dump, several: set[str], groups: Mapping[str, Mapping[str, Any]]) -> Dump:
    here = several & _names(dump)
    if not here:
        return dump
    config = dict(dump.get("pg_config") or {})
    for name in here:
        known = {"ranks": str(groups[name]["ranks"])} if groups.get(name, {}).get("ranks") else {}
        if found := {**config.pop(name, {}), **known}:
            config[_apart(name)] = {**found, "name": _apart(name)}
    entries = [
        {**e, "process_group": (_apart(e["process_group"][0]), *e["process_group"][1:])}
        if e["process_group"][0] in here
        else e
        for e in dump["entries"]
    ]
    return {**dump, "pg_config": config, "entries": entries}


def _apart(name: str) -> str:
    return f"{name}@gloo"
