"""First fixes that the program's own lines show where ranks do not begin, go on or end as one: a rank's number, a checkpoint, a wrapper gone past, an end asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unhang.analyze.calls.loop_heads import Place, resumed_place
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.program.callpath import user_path
from unhang.analyze.program.shared_state import looks_unmet
from unhang.analyze.program.source import Condition, frame_at, function_at, nodes_around, surroundings
from unhang.analyze.program.trees import (
    blocks_of,
    covers,
    functions_named,
    inside,
    last_name,
    nodes_of,
    program_nodes,
)
from unhang.analyze.program.ways_out import way_out_of
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits.starts import ID_OF_START, set_at
from unhang.analyze.waits.waits_for import under_way
from unhang.model import EvidenceLine, Fix, Frame, user_frames
from unhang.rules import wording as w
from unhang.rules.base import CLEAN, Found, edit

_OF_NODES = re.compile(r"node|machine|host", re.IGNORECASE)
_PER_NODE = re.compile(r"per_?node|local|worker|gpu|device|proc", re.IGNORECASE)


def of_number(s: Situation, start: Frame | None) -> Fix | None:
    """For two processes that are one rank, as the program adds the number of the node to that of the process on it. `start`: its line that begins the group."""
    if start is None or not any(e.twins for e in s.case.ranks.values()):
        return None
    function = function_at(start.file, start.line)
    calls = [c for c in inside(function, ast.Call) if last_name(c.func) == "init_process_group"]
    given = {k.arg: k.value for c in calls for k in c.keywords} if len(calls) == 1 else {}
    rank, at = _set_in(function, given.get("rank"))
    world, _ = _set_in(function, given.get("world_size"))
    match rank, world:
        case ast.BinOp(left=a, op=ast.Add(), right=b), ast.BinOp(left=c, op=ast.Mult(), right=d) if not (
            inside(a, ast.BinOp) or inside(b, ast.BinOp)
        ):
            sides = [ast.unparse(n) for n in (a, b)]
            factors = [ast.unparse(n) for n in (c, d)]
        case _:
            return None
    nodes = [text for text in sides if _OF_NODES.search(text) and not _is_local(text)]
    each = [text for text in factors if _PER_NODE.search(text)]
    if len(nodes) != 1 or len(each) != 1:
        return None
    other = next(text for text in sides if text != nodes[0])
    ranks = w.name_ranks([r for r, e in s.case.ranks.items() if e.twins])
    return edit(
        f"Give every process a number of its own: by `{ast.unparse(rank)}` two processes are {ranks}",
        f"# {w.line_at(start.file, at)}, in place of `{ast.unparse(rank)}`\n{nodes[0]} * {each[0]} + {other}",
        verify=CLEAN,
    )


def _is_local(text: str) -> bool:
    return "local" in text.lower()


def _set_in(function: ast.AST | None, value: ast.expr | None) -> tuple[ast.expr | None, int]:
    """What a variable is set to, once in its function, and the line; else the value itself."""
    if not isinstance(value, ast.Name):
        return value, getattr(value, "lineno", 0)
    sets = [n for n in inside(function, ast.Assign) if value.id in {last_name(t) for t in n.targets}]
    return (sets[0].value, sets[0].lineno) if len(sets) == 1 else (None, 0)


# A call past the wrapper.


def in_eval_mode(frame: Frame | None, made: Sequence[Frame]) -> Fix | None:
    """For a module that some ranks run alone, and in whose forward a call of all ranks is made only where `self.training` holds."""
    inner = made[: made.index(frame)] if frame in made else ()
    tests = ((f, c) for f in user_frames(inner) for c in surroundings(f.file, f.line).conditions)
    at = next((f for f, c in tests if c.text == "self.training"), None)
    if at is None or frame is None:
        return None
    return edit(
        f"Run the module in eval mode there: {w.spot(at)} makes the call only in training mode",
        f"# {w.line_at(frame.file, frame.line)}\nmodel.eval()    # in front of it: the module that runs there\n...\nmodel.train()   # behind it",
        verify=CLEAN,
    )


def of_module(condition: Condition) -> Fix | None:
    """For a branch in which the module is called past its wrapper, where the other one calls the wrapper: it makes no reduction of the gradients."""
    function = function_at(condition.path, condition.line)
    if function is None or _is_without_gradients(function):
        return None
    past = [c for c in inside(function, ast.Call) if isinstance(c.func, ast.Attribute) and _is_module(c.func.value)]
    if len(past) != 1 or not isinstance(past[0].func, ast.Attribute) or past[0].keywords:
        return None
    call, method = past[0], past[0].func.attr
    wrapper = ast.unparse(call.func.value.value)  # type: ignore[attr-defined]
    through = [c for c in inside(function, ast.Call) if ast.unparse(c.func) == wrapper]
    if not through or not _are_two_ways(function, condition.line, call, through[0]):
        return None
    owners = [
        (path, n, _methods(n))
        for path, n in program_nodes(str(Path(condition.path).parent))
        if isinstance(n, ast.ClassDef)
    ]
    owners = [(path, n, names) for path, n, names in owners if {"forward", method} <= names.keys()]
    if len(owners) != 1 or "both_ways" in owners[0][2]:
        return None
    path, _, names = owners[0]
    given = ", ".join(map(ast.unparse, call.args))
    return edit(
        f"Call the model through its wrapper in both branches: `{wrapper}.module.{method}(...)` goes past it, and makes none of the calls that the others wait for",
        f"# {w.line_at(path, names['forward'].lineno)}: rename forward to both_ways, and beside it\n"
        "def forward(self, *given, way='both_ways'):\n    return getattr(self, way)(*given)\n"
        f"# {w.line_at(condition.path, call.lineno)}, in place of `{ast.unparse(call)}`\n{wrapper}({given}{', ' if given else ''}way={method!r})\n"
        "# and find_unused_parameters=True for DistributedDataParallel, where the two use other parameters",
        verify=CLEAN,
    )


def _is_module(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr == "module"


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}


def _is_without_gradients(function: ast.AST) -> bool:
    """Whether it, or a part of it, makes no gradients: an evaluation goes past the wrapper with reason."""
    names = {last_name(n) for n in ast.walk(function) if isinstance(n, ast.Name | ast.Attribute)}
    return bool(names & {"no_grad", "inference_mode", "eval"})


def _are_two_ways(function: ast.AST, line: int, one: ast.Call, other: ast.Call) -> bool:
    """Whether the test of a line decides which of two calls is made."""
    gate = next((n for n in inside(function, ast.If) if n.test.lineno == line), None)
    if gate is None:
        return False
    within = [any(covers(s, c.lineno) for s in gate.body) for c in (one, other)]
    return within[0] is not within[1]


# A checkpoint that only one rank reads.


def resumed_apart(found: Found, header: Frame) -> Found:
    """A loop that some ranks left, of which the program shows that it begins at what one of them alone has read, or each for itself."""
    fix, place = of_resume(header), resumed_place(header.file, header.line)
    if fix is not None:
        return replace(found, cause="code-divergence", fixes=(fix,))
    return found if place is None else _from_its_own_place(found, place)


def _from_its_own_place(found: Found, place: Place) -> Found:
    """The ranks go on at places that are not the same: all of them are to take the first."""
    target = place.text.partition("=")[0].strip()
    fix = edit(
        f"Go on at one place: each rank sets `{target}` for itself, and has as many rounds as are left from there",
        f"# {w.spot(place.frame)}, behind `{place.text}`, on every rank: the first of all their places\n"
        f"places = [None] * dist.get_world_size(); dist.all_gather_object(places, {target}); {target} = min(places)",
        verify=CLEAN,
    )
    words = {**found.words, "name": target, "set": w.place(place.frame), "text": place.text}
    seen = w.code_line(place.frame, "place to go on from")
    return replace(
        found, say="from its own place", words=words, location=place.frame, fixes=(fix,), confidence=0.85,
        evidence=(*found.evidence, *seen),
    )  # fmt: skip


def of_resume(header: Frame) -> Fix | None:
    """For a loop that begins at what only one rank has read: all of them are to read the checkpoint, the weights and the optimizer with it."""
    loop = next((n for n in reversed(nodes_around(header.file, header.line)) if isinstance(n, ast.For)), None)
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name("range"), args=[ast.Name() | ast.Attribute() as first, _])):
            name = last_name(first)
        case _:
            return None
    sets = [
        n.value
        for n in nodes_of(header.file)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and name in {last_name(t) for t in n.targets}
    ]
    if len(sets) != 1:
        return None
    wanted, folder = last_name(sets[0].func), str(Path(header.file).parent)
    named = functions_named(folder, wanted)
    gates = [(p, g) for p, f in named for g in inside(f, ast.If) if _loads_on_one(p, g)] if len(named) == 1 else []
    if len(gates) != 1:
        return None
    path, gate = gates[0]
    parts = gate.test.values if isinstance(gate.test, ast.BoolOp) and isinstance(gate.test.op, ast.And) else []
    of_rank = [p for p in parts if _asks_the_rank(path, p)]
    rest = " and ".join(ast.unparse(p) for p in parts if p not in of_rank)
    if len(of_rank) != 1 or not rest:
        return None
    return edit(
        f"Let every rank read the checkpoint: only one does, by `{ast.unparse(of_rank[0])}`, and the others begin anew",
        f"# {w.spot(frame_at(path, gate.lineno))}, in place of `if {ast.unparse(gate.test)}:`, on every rank\nif {rest}:",
        verify=CLEAN,
    )


def _loads_on_one(path: str, gate: ast.If) -> bool:
    loads = any(last_name(c.func).startswith("load") for s in gate.body for c in inside(s, ast.Call))
    around = surroundings(path, gate.body[0].lineno).conditions
    return loads and any(c.line == gate.test.lineno and c.depends_on_rank for c in around)


def _asks_the_rank(path: str, part: ast.expr) -> bool:
    return any(
        last_name(n) in ("rank", "get_rank", "is_main_process", "local_rank")
        for n in ast.walk(part)
        if isinstance(n, ast.Name | ast.Attribute)
    )


# An end that each rank asks an actor of Ray for.


def left_by_asking(s: Situation, late: LateRank) -> tuple[Frame, str, Fix] | None:
    """Where an actor has ended its loop, by what it asked of another one, while its peers began another round: the line, its test, and what mends it."""
    for victim in late.victims:
        stay = stack_path(s.case, victim)
        found = way_out_of(s.case, stay, (), (late.rank,), is_even=True) if stay else None
        if found is None:
            continue
        frame, _ = found
        gate = next(
            (
                n
                for n in reversed(nodes_around(frame.file, frame.line))
                if isinstance(n, ast.If) and n.test.lineno == frame.line
            ),
            None,
        )
        asks = gate is not None and any(last_name(c.func) == "remote" for c in inside(gate.test, ast.Call))
        if gate is None or not asks or gate.body not in blocks_of(gate):
            continue
        text = ast.unparse(gate.test)
        fix = edit(
            f"Let all ranks leave the loop together: each asks for itself, and what `{text}` says changes in between",
            f"# {w.spot(frame)}, in place of `if {text}:`, on every rank\n"
            f"over = torch.tensor(float({text}))\ndist.all_reduce(over, op=dist.ReduceOp.MAX)\nif over.item(): ...   # as before",
            verify=CLEAN,
        )
        return frame, text, fix
    return None


def of_files_of_others(frames: Sequence[Frame]) -> Fix | None:
    """For ranks that have made unlike models, where the program goes by files that others may still be writing."""
    found = looks_unmet(user_path(frames))
    if found is None:
        return None
    at, call = found
    return edit(
        f"Let all ranks have written before any of them looks: `{call}` goes by the files that are there, and nobody waits in front of it",
        f"# {w.spot(at)}, in front of this line, on every rank\ntorch.distributed.barrier()",
        verify=CLEAN,
    )


def built_of_all(folder: str) -> Fix | None:
    """For a module that is as large as what each rank has built of its own data: `Net(len(vocab))`, where `vocab = build(sentences)` stands above it."""
    modules = {
        n.name for _, n in program_nodes(folder) if isinstance(n, ast.ClassDef) and "Module" in ast.unparse(n)[:200]
    }
    found = {}
    for path, call in ((p, n) for p, n in program_nodes(folder) if isinstance(n, ast.Call)):
        lengths = [a.args[0] for a in call.args if isinstance(a, ast.Call) and last_name(a.func) == "len" and a.args]
        if last_name(call.func) not in modules or len(lengths) != 1:
            continue
        sets = [n for n in inside(function_at(path, call.lineno), ast.Assign) if n.lineno < call.lineno]
        made = [n for n in sets if ast.unparse(lengths[0]) in map(ast.unparse, n.targets)]
        built = made[-1].value if made else None
        if isinstance(built, ast.Call) and len(built.args) == 1 and not built.keywords:
            found[path, made[-1].lineno] = (ast.unparse(made[-1]), ast.unparse(built), ast.unparse(built.args[0]))
    if len(found) != 1:
        return None
    (path, line), (whole, built_by, given) = next(iter(found.items()))
    of_all = built_by.replace(f"({given})", "([x for part in everyone for x in part])", 1)
    return edit(
        f"Build `{built_by}` of what all ranks have: the model is as large as it",
        f"# {w.line_at(path, line)}, in place of `{whole}`, on every rank; import torch.distributed as dist\n"
        f"everyone = [None] * dist.get_world_size()\ndist.all_gather_object(everyone, {given})\n{whole.replace(built_by, of_all, 1)}",
        verify=CLEAN,
    )


def by_launchers(s: Situation, frames: Sequence[Frame]) -> Found:
    """Of launchers that wait in their rendezvous: whether they look for each other under other ids, and where the program that started them gives these."""
    stack = [EvidenceLine("launcher stack", str(f), f.line) for f in frames[:3]]
    of_id = f" {ID_OF_START}"
    ids = list(dict.fromkeys(t.name.partition(of_id)[2] for t in s.case.launcher_stacks if of_id in t.name))
    if len(ids) < _SEVERAL and s.case.ranks:
        return Found(0.85, (), stack, {"ended": w.name_ranks(s.case.ranks)}, "left alone", ("numbers",))
    if len(ids) < _SEVERAL:
        return Found(0.85, (), stack, say="launcher", fixes=("numbers", "first"))
    own = [f for t in s.case.launcher_stacks for f in user_frames(t.frames)]
    folders = dict.fromkeys(f.file.rpartition("/")[0] for f in own)
    found = (at for x in folders for word in ("--rdzv-id", "--rdzv_id") if (at := set_at(x, (), word)) is not None)
    at = next(found, None)
    words = {"ids": w.listed(ids[:4]), "spot": w.spot(at) if at else "--rdzv-id"}
    lines = [EvidenceLine("launcher", f"--rdzv-id {x}") for x in ids[:4]]
    return Found(0.95, (), [*lines, *stack], words, "other ids", ("one id",), location=at)


_SEVERAL = 2


def held_by_a_wait(s: Situation, ranks: Sequence[int]) -> Found | None:
    """The rank of these that makes a group while another thread of it waits for a key of the store: a client of it does one thing at a time."""
    for rank in ranks:
        evidence = s.case.ranks[rank]
        wait = under_way(evidence, "store_wait")
        at = w.own_line(wait.frames) if wait is not None else None
        if at is None or at == w.own_line(evidence.main_frames):
            continue
        words = {"rank": rank, "key": wait.detail if wait else "", "spot": w.spot(at)}
        others = tuple(r for r in ranks if r != rank)
        lines = (*w.code_line(at, f"rank {rank} source"), *w.stack_lines(evidence, 2))
        return Found(
            0.88,
            (rank,),
            lines,
            words,
            "held",
            ("own client",),
            victims=others,
            location=at,
            cause="rank-stuck-in-user-code",
        )
    return None
