"""How ranks look for each other as they start: who reaches the store, at which ports they look, and where the program sets these."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from unhang.analyze.program.source import frame_at
from unhang.analyze.program.trees import program_nodes
from unhang.analyze.situation import Situation
from unhang.analyze.waits.waits_for import under_way
from unhang.model import Frame, PendingCall, grouped, user_frames

_RENDEZVOUS = "/torch/distributed/rendezvous.py"
ID_OF_START = "start "  # behind it, in the name of a launcher's thread, stands its rendezvous id


def not_connected(s: Situation) -> tuple[int, ...]:
    """Ranks that make their store while all others, and they are known, are past that in the same init_process_group.

    Never rank 0, which serves the store: it may wait there for the others.
    """
    stacks = {r: e.main_stack for r, e in s.case.ranks.items() if e.main_stack is not None}
    starting = {r: t.frames for r, t in stacks.items() if any(f.function == "init_process_group" for f in t.frames)}
    if set(starting) != set(s.case.world):
        return ()
    found = {r for r, frames in starting.items() if any(f.file.endswith(_RENDEZVOUS) for f in frames)}
    has_server = any(r not in found for r in starting if r)
    return tuple(sorted(found - {0})) if has_server else ()


def ports_of_start(s: Situation) -> Mapping[str, list[int]]:
    """At which ports the ranks that are in init_process_group look for each other, all of the job being there; nothing if it is one.

    Addresses are not compared: a machine has several.
    """
    inits = {r: c for r in s.case.world if (c := _init_of(s, r)) is not None}
    if len(inits) < len(s.case.world) or not all(c.detail.rpartition(":")[2].isdecimal() for c in inits.values()):
        return {}
    ports = grouped((c.detail.rpartition(":")[2], r) for r, c in inits.items())
    return ports if len(ports) > 1 else {}


def the_few(places: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The ranks that are not where most are; nobody where two places have as many."""
    most = max(map(len, places.values()))
    usual = [p for p, ranks in places.items() if len(ranks) == most]
    return tuple(sorted(r for p, ranks in places.items() for r in ranks if p not in usual)) if len(usual) == 1 else ()


def port_at(s: Situation, rank: int) -> Frame | None:
    """The one line of the program that sets the port, else the one at which the rank is in init_process_group."""
    init = _init_of(s, rank)
    at = next(iter(user_frames(init.frames) or init.frames), None) if init is not None else None
    return (set_at(at.file.rpartition("/")[0], ("MASTER_PORT",)) if at is not None else None) or at


def _init_of(s: Situation, rank: int) -> PendingCall | None:
    return under_way(s.case.ranks[rank], "init_process_group") if rank in s.case.ranks else None


def set_at(folder: str, names: Iterable[str], value: str = "") -> Frame | None:
    """The one line of a program that sets one of these variables, or else at which that value of them stands."""
    wanted = {*names}
    nodes = list(program_nodes(folder))
    sets = {(path, line) for path, n in nodes for line in _sets(n, wanted)}
    given = {(p, n.lineno) for p, n in nodes if value and isinstance(n, ast.Constant) and n.value == value}
    return next((frame_at(*next(iter(found))) for found in (given, sets) if len(found) == 1), None)


def _sets(node: ast.AST, names: set[str]) -> Iterable[int]:
    """The line of a node that sets a variable: `x["NAME"] = ...`, `{"NAME": ...}`, `x.setdefault("NAME", ...)`, `update(NAME=...)`."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.lineno for t in targets if isinstance(t, ast.Subscript) and _is_one(t.slice, names)]
    if isinstance(node, ast.Dict):
        return [k.lineno for k in node.keys if k is not None and _is_one(k, names)]
    if isinstance(node, ast.Call):
        is_default = isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault"
        first = [node.lineno] if is_default and node.args and _is_one(node.args[0], names) else []
        return first + [k.value.lineno for k in node.keywords if k.arg in names]
    return ()


def _is_one(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Constant) and node.value in names
