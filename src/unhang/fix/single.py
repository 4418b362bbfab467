"""Changes of one line: an argument, a `raise`, a folder that is made, a send that does not wait, tensors gathered as objects, a key set always."""

from __future__ import annotations

import ast
from dataclasses import replace

from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import covers
from unhang.fix.agreed import put_helper, reached_by_all
from unhang.fix.direction import has_exchange
from unhang.fix.functions import ANY_RANK
from unhang.fix.program import LEAVES, NoDiff, Program, Said, binds, called, calls_in, dotted, holds, loads
from unhang.model import Finding

_WRAPPERS = ("DistributedDataParallel", "DDP")
_THREADS = ("Thread", "Timer")
_WRITERS = ("save", "open", "write_text", "write_bytes", "savez", "save_file")


def find_unused(program: Program, finding: Finding) -> Said:
    """Lets DDP look for the parameters that took no part.

    Raises:
        NoDiff: the file has not one call of DDP, or it looks for them already.
    """
    wraps = [n for n in ast.walk(program.tree) if isinstance(n, ast.Call) and called(n) in _WRAPPERS]
    if len(wraps) != 1:
        many = "no call" if not wraps else f"{len(wraps)} calls"
        raise NoDiff(f"{program.path.name} has {many} of DistributedDataParallel")
    call = wraps[0]
    given = {k.arg: k.value for k in call.keywords}
    if "static_graph" in given or None in given:
        raise NoDiff("that line alone does not show what DDP is given")
    if (value := given.get("find_unused_parameters")) is not None:
        if program.text(value) == "True":
            raise NoDiff("DDP looks for unused parameters already")
        program.replace(value, "True")
    else:
        at = program.end(call) - 1
        has_comma = program.data[:at].rstrip().endswith(b",")
        program.insert_at(at, f"{'' if has_comma else ', '}find_unused_parameters=True")
    says = "DDP looks in every step for parameters that took no part in the loss; that costs a walk of the graph"
    return Said("find unused", says)


def raise_again(program: Program, finding: Finding) -> Said:
    """Lets the exception end the rank, so that the launcher ends the others.

    Raises:
        NoDiff: the handler is not found.
    """
    last = _handled(program, finding)[1].body[-1]
    if isinstance(last, ast.Continue | ast.Break | ast.Pass):
        program.replace(last, "raise")
    elif isinstance(last, ast.Return | ast.Raise | ast.If | ast.With | ast.For | ast.While | ast.Try):
        raise NoDiff("the `except` block ends with a statement that cannot be replaced by `raise`")
    else:
        program.follow_with(last, "raise")
    says = "The exception ends the rank, and the launcher the others at once: a message instead of a hang"
    return Said("raise again", says)


def _handled(program: Program, finding: Finding) -> tuple[ast.Try | ast.TryStar, ast.ExceptHandler]:
    """The innermost `except` that caught the exception, and its `try`."""
    line = next((e.line for e in finding.evidence if e.source.endswith("handler") and e.line), 0)
    tries = (n for n in ast.walk(program.tree) if isinstance(n, ast.Try | ast.TryStar))
    found = [(n, h) for n in tries for h in n.handlers if covers(h, line)]
    if not found:
        raise NoDiff("the `except` that caught the exception is not in this file")
    return found[-1]


def skip_together(program: Program, finding: Finding, backend: str) -> Said:
    """Lets all ranks leave out the round in which one of them handled an exception.

    Raises:
        NoDiff: the handler does more than that, the `try` holds calls with others, or not all ranks come to it in each round.
    """
    one, _ = _handled(program, finding)
    loop = next((n for n in program.around(one) if isinstance(n, ast.For | ast.While)), None)
    last = one.handlers[0].body[-1]
    if loop is None or len(one.handlers) != 1 or one.orelse or one.finalbody or not isinstance(last, ast.Continue):
        raise NoDiff("the `except` does not just go on with the next round")
    if has_exchange(one.body) or holds(one.body, LEAVES | ast.Raise):
        raise NoDiff("the `try` holds calls with others, or leaves the round")
    if any(isinstance(n, ast.Continue) and n.lineno < one.lineno for n in ast.walk(loop)):
        raise NoDiff(f"a `continue` before line {one.lineno} may lead past it")
    if "failed" in program.names() or program.block_of(one) is not loop.body:
        raise NoDiff("the file uses the name 'failed' already, or not every round comes to the `try`")
    reached_by_all(program, one.lineno)
    name, group = put_helper(program, ANY_RANK, one, finding, backend)
    indent, end = program.indent(one), program.newline
    program.insert_before(one, f"{indent}failed = False{end}")
    program.replace(last, "failed = True")
    step = program.indent(last).removeprefix(indent) or "    "
    program.insert_after(one, f"{indent}if {name}(failed{group}):{end}{indent}{step}continue{end}")
    return Said("skip together", "All ranks leave out a round together, as soon as one of them cannot make it")


def make_folder(program: Program, finding: Finding) -> Said:
    """Makes the folder on every rank before it is written to.

    Raises:
        NoDiff: the line does not write to a path in a folder that has a name.
    """
    line = finding.line
    for statement in program.statements_at(line):
        if not any(called(c) in _WRITERS for c in calls_in(statement)) or not program.is_alone(statement):
            continue
        folders = [
            f for c in calls_in(statement) if called(c) in _WRITERS for a in c.args if (f := _folder(program, a))
        ]
        if len(folders) == 1:
            program.insert_before(statement, f"{program.indent(statement)}{folders[0]}{program.newline}")
            return Said("make folder", "Every rank makes the folder, which costs nothing where it is there")
    raise NoDiff("the line does not show which folder the path lies in")


def _folder(program: Program, node: ast.expr) -> str:
    match node:
        case ast.BinOp(op=ast.Div(), left=ast.Name() | ast.Attribute() as left):
            return f"{program.text(left)}.mkdir(parents=True, exist_ok=True)"
        case ast.JoinedStr(
            values=[ast.FormattedValue(value=ast.Name() as name), ast.Constant(value=str() as rest), *_]
        ):
            has_os = any(isinstance(n, ast.Import) and "os" in {a.name for a in n.names} for n in program.tree.body)
            return f"os.makedirs({name.id}, exist_ok=True)" if has_os and rest.startswith("/") else ""
    return ""


def send_without_waiting(program: Program, finding: Finding) -> Said:
    """Lets a rank send before it receives, without waiting for the other side.

    Raises:
        NoDiff: the two calls do not stand one after the other, or what is sent depends on what is received.
    """
    line = finding.line
    for first in program.statements_at(line):
        block = program.block_of(first)
        pair = block[block.index(first) :][:2]
        calls = [s.value for s in pair if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
        if sorted(map(called, calls)) != ["recv", "send"]:
            continue
        second, is_sent_first = pair[1], called(calls[0]) == "send"
        send, receive = calls if is_sent_first else calls[::-1]
        if is_sent_first and _peer(program, send) != _peer(program, receive) and not _all_at(finding, line):
            raise NoDiff("the rank sends to one and receives from another")
        if any(isinstance(n, ast.For) and _peer(program, send) in binds(n.target) for n in program.around(first)):
            why = "each round of the loop has another partner: a rank that comes to one waits for it all the same"
            raise NoDiff(why)
        into = {n.id for n in ast.walk(receive.args[0]) if isinstance(n, ast.Name)} if receive.args else set()
        if not into or any(isinstance(n, ast.Name) and n.id in into for n in ast.walk(send)):
            raise NoDiff("what is sent depends on what was received")
        if "sent" in program.names(program.function_of(first)):
            raise NoDiff("the function uses the name 'sent' already")
        name, text = program.text(send.func), program.text(send)
        started = f"sent = {name.removesuffix('send')}isend{text.removeprefix(name)}"
        if is_sent_first:
            program.replace(first, started)
            program.follow_with(second, "sent.wait()")
            return Said("send first", "The rank sends without waiting, and receives meanwhile")
        program.insert_before(first, f"{program.indent(first)}{started}{program.newline}")
        program.replace(second, "sent.wait()")
        return Said("send first", "Every rank sends first, and does not wait for the other side before it receives")
    raise NoDiff("the sends and receives do not stand one after the other")


def _peer(program: Program, call: ast.Call) -> str:
    """The other side of a send or receive, as the code names it."""
    given = next((k.value for k in call.keywords if k.arg in ("dst", "src")), next(iter(call.args[1:2]), None))
    return program.text(given) if given is not None else ""


def _all_at(finding: Finding, line: int) -> bool:
    """Whether every rank of the circle waits at that line."""
    waiting = {e.source.removesuffix(" waits") for e in finding.evidence if e.source.endswith(" waits")}
    return bool(waiting) and waiting <= {e.source.removesuffix(" stack") for e in finding.evidence if e.line == line}


def wait_for_thread(program: Program, finding: Finding) -> Said:
    """Lets the main thread wait for one that makes a collective of its own, so that the calls come in one order.

    Raises:
        NoDiff: the thread goes on for long, or it is not certain where it starts.
    """
    line = finding.line
    name = (finding.location.function if finding.location else "").rpartition(".")[2]
    for call in (n for n in ast.walk(program.tree) if isinstance(n, ast.Call) and called(n) in _THREADS):
        named = [k.value for k in call.keywords if k.arg in ("target", "function")]
        target = next(iter((*named, *call.args[1:2])), None)  # of both, it is the second
        is_lambda = isinstance(target, ast.Lambda) and target.lineno <= line <= (target.end_lineno or 0)
        if target is None or not (is_lambda or dotted(target).rpartition(".")[2] == name):
            continue
        bodies = [n for n in ast.walk(program.tree) if isinstance(n, ast.FunctionDef) and n.name == name]
        if any(isinstance(n, ast.While | ast.For) for b in bodies for n in ast.walk(b)):
            raise NoDiff("the thread runs for long: give it a group of its own, or let the main thread make its call")
        return _joined(program, call)
    raise NoDiff("which of two threads or groups comes first is not decided in one place; see what to do in the report")


def _joined(program: Program, call: ast.Call) -> Said:
    why = "The main thread waits until the other one has made its call, so that all ranks make the calls in one order"
    parent, says = program.parents[call], Said("join thread", why)
    if any(c.depends_on_rank for c in surroundings(str(program.path), call.lineno).conditions):
        raise NoDiff("the thread is started on some ranks only")
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        start = f"{parent.targets[0].id}.start()"
        statements = (n for n in ast.walk(program.function_of(parent)) if isinstance(n, ast.Expr))
        found = [n for n in statements if program.text(n) == start]
        if len(found) == 1:
            program.follow_with(found[0], start.replace("start", "join"))
            return says
    outer = program.parents[parent]
    statement = program.parents[outer] if isinstance(outer, ast.Call) else None
    if isinstance(parent, ast.Attribute) and parent.attr == "start" and isinstance(statement, ast.Expr):
        if "thread" in program.names():
            raise NoDiff("the file uses the name 'thread' already")
        program.replace(statement, f"thread = {program.text(call)}")
        for do in ("start", "join"):
            program.follow_with(statement, f"thread.{do}()")
        return says
    raise NoDiff("it is not certain where the thread is started")


def gather_objects(program: Program, finding: Finding, backend: str) -> Said:
    """Gathers tensors of any size.

    Raises:
        NoDiff: it is another collective, or the tensors lie on devices.
    """
    line = finding.line
    if (finding.collective or {}).get("op") != "all_gather" or "gloo" not in backend:
        raise NoDiff(
            "only an all_gather of tensors on the host can be made one of objects; pad the tensors to one size"
        )
    found = [c for s in program.statements_at(line) for c in calls_in(s) if called(c) == "all_gather"]
    if len(found) != 1 or any(k.arg == "async_op" for k in found[0].keywords) or len(found[0].args) < 2:
        raise NoDiff("the line does not make exactly one plain all_gather")
    if any(isinstance(n, ast.BinOp) and _counts_by_rank(n) for n in ast.walk(program.function_of(found[0]))):
        raise NoDiff("what follows counts on parts of one size")
    name = program.text(found[0].func)
    program.replace(found[0].func, f"{name}_object")
    says = "The tensors are gathered as objects, each with its own size; slower, and without gradients as before"
    return Said("gather objects", says)


def _counts_by_rank(node: ast.BinOp) -> bool:
    """Whether it is an offset by the rank: `rank * x.size(0)`."""
    sides = [ast.unparse(node.left), ast.unparse(node.right)]
    of_rank = [kind_of_name(side.rpartition(".")[2].partition("(")[0]) in ("rank", "local") for side in sides]
    return isinstance(node.op, ast.Mult) and of_rank[0] is not of_rank[1]


def set_always(program: Program, finding: Finding) -> Said:
    """Takes the line that sets a key out of the conditions that do not ask for the rank: the others wait for the key every time.

    Raises:
        NoDiff: it is not one plain call in one `if`, or needs what only that branch has.
    """
    line = finding.line
    found = [s for s in program.statements_at(line) if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    if len(found) != 1 or called(found[0].value) != "set":  # type: ignore[arg-type]
        raise NoDiff(f"line {line} is not one call that sets a key")
    statement, gate = found[0], program.parents[found[0]]
    if not isinstance(gate, ast.If) or statement not in gate.body or gate.orelse:
        raise NoDiff(f"line {line} does not stand in an `if` without an `else`")
    asks = next((c for c in surroundings(str(program.path), line).conditions if c.line == gate.test.lineno), None)
    if asks is not None and asks.depends_on_rank:
        parts = gate.test.values if isinstance(gate.test, ast.BoolOp) and isinstance(gate.test.op, ast.And) else []
        of_rank = [p for p in parts if replace(asks, test=p, text=ast.unparse(p)).depends_on_rank]
        if len(gate.body) != 1 or not 0 < len(of_rank) < len(parts):
            raise NoDiff(f"nothing but the rank decides whether line {line} runs, or more than that hangs on it")
        program.replace(gate.test, " and ".join(program.text(p) for p in of_rank))
    else:
        own = {name for s in gate.body if s is not statement for name in binds(s) if "." not in name}
        if len(gate.body) == 1 or own & loads([statement]) or holds([gate], LEAVES | ast.Raise):
            raise NoDiff(f"line {line} needs the branch that it stands in")
        text = program.whole_line(statement)
        program.remove_lines(statement)
        program.insert_after(gate, f"{program.indent(gate)}{text}{program.newline}")
    return Said("set always", "Set the key every time: the other ranks wait for it every time")
