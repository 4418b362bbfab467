"""From Python's syntax tree to what is kept of it (`ir`), in one pass."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from unhang.lint.ir import (
    Attr,
    Call,
    Const,
    Do,
    Expr,
    Fn,
    Function,
    Handler,
    If,
    Leave,
    Loop,
    Op,
    Ref,
    Set,
    Stmt,
    Try,
    With,
    each_of,
    packed,
)
from unhang.lint.known import NAMES, STOPS, WRAPPERS
from unhang.lint.syntax import Syntax, dotted

_NOTHING = Const(None)
_COMPARE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_ARITHMETIC = {ast.Mod: "%", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/"}
_WRAPPERS = frozenset({"FSDP", "DDP", *(full.rpartition(".")[2] for full in WRAPPERS)})
_MOST_TEXT, _SPAWNS = 70, frozenset({"spawn", "start_processes"})


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


class Lowering:
    """One file on its way. `functions`: all of it, the module's own lines first."""

    def __init__(self, lines: Sequence[str], syntax: Syntax) -> None:
        self._lines, self._syntax = lines, syntax
        self.functions: list[Function] = []
        self.names = syntax.names
        self.classes: dict[str, list[str]] = {}
        self.fields: dict[str, list[str]] = {}
        self._owner = ""
        self._at = -1
        self._words: set[str] = set()
        self._sets: set[str] = set()
        self._yields = False
        self._blocks = 0

    def module(self, tree: ast.Module) -> None:
        """Lowers the whole file."""
        self._function("<module>", 1, [], [], [], tree)
        if any(not _SPAWNS.isdisjoint(f.words) for f in self.functions):
            calls = (
                n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args and isinstance(n.args[0], ast.Name)
            )
            spawned = {n.args[0].id for n in calls if dotted(n.func).rpartition(".")[2] in _SPAWNS}  # type: ignore[attr-defined]
            for function in self.functions:
                function.is_spawned = function.inside == 0 and not function.owner and function.name in spawned

    def _function(
        self, name: str, line: int, parameters: list[str], defaults: list[Expr | None], decorators: list[str],
        of: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    ) -> int:  # fmt: skip
        before = self._at, self._words, self._sets, self._yields
        at = len(self.functions)
        owner = self._owner
        function = Function(name, line, owner, self._at, parameters, defaults, decorators, [], [], False, packed([]))
        self.functions.append(function)
        self._at, self._words, self._sets, self._yields = at, set(), set(), False
        function.raw = packed(
            [Leave("return", self._expr(of.body), of.lineno, of.col_offset)]
            if isinstance(of, ast.Lambda)
            else self._block(of.body)
        )
        function.words, function.sets = sorted(self._words), sorted(self._sets)
        function.is_generator = self._yields
        self._at, self._words, self._sets, self._yields = before
        return at

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
        a = node.args
        positional = [*a.posonlyargs, *a.args]
        parameters = [x.arg for x in (*positional, *a.kwonlyargs)]
        defaults = [self._expr(d) for d in a.defaults] + [
            self._expr(d) if d is not None else None for d in a.kw_defaults
        ]
        if isinstance(node, ast.Lambda):
            return self._function("<lambda>", node.lineno, parameters, defaults, [], node)
        decorators = [d for d in (dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list) if d]
        if a.vararg:
            parameters.append("*" + a.vararg.arg)
            defaults.append(None)
        wrappers = {
            x.arg: dotted(x.annotation)
            for x in (*positional, *a.kwonlyargs)
            if isinstance(x.annotation, ast.Name | ast.Attribute) and _last(x.annotation) in _WRAPPERS
        }
        owner = self._owner
        if self._at > 0:
            self._owner = ""
        rounds, self._syntax.within_loops = self._syntax.within_loops, [node]
        try:
            at = self._function(node.name, node.lineno, parameters, defaults, decorators, node)
            self.functions[at].annotated = wrappers
            return at
        finally:
            self._owner, self._syntax.within_loops = owner, rounds

    # Statements.

    def _block(self, statements: Iterable[ast.stmt]) -> list[Stmt]:
        out: list[Stmt] = []
        self._blocks += 1
        self._syntax.blocks.append(self._blocks)
        for statement in statements:
            lower = _STATEMENTS.get(type(statement))
            if lower is not None:
                lower(self, statement, out)
        self._syntax.blocks.pop()
        return out

    def _text(self, node: ast.expr) -> str:
        line = self._lines[node.lineno - 1] if node.lineno <= len(self._lines) else ""
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        raw = line.encode("utf-8", "surrogatepass")[node.col_offset : end].decode("utf-8", "replace").strip()
        raw += " ..." if end is None else ""
        return raw if len(raw) <= _MOST_TEXT else raw[: _MOST_TEXT - 4] + " ..."

    def _do(self, node: ast.Expr, out: list[Stmt]) -> None:
        value = node.value
        if isinstance(value, ast.Yield | ast.YieldFrom | ast.Await) and value.value is not None:
            self._yields |= not isinstance(value, ast.Await)
            value = value.value
            if not isinstance(node.value, ast.Await):
                given = Leave("yield", self._expr(value), node.lineno, node.col_offset)
                out.append(given if isinstance(node.value, ast.Yield) else each_of(given))
                return
        if isinstance(value, ast.Yield):
            self._yields = True
            out.append(Leave("yield", None, node.lineno, node.col_offset))
        elif not isinstance(value, ast.Constant | ast.Name | ast.JoinedStr):
            if isinstance(value, ast.Call):
                self._syntax.statement(node)
            out.append(Do(self._expr(value), node.lineno))

    def _set(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, out: list[Stmt]) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript):
                self._syntax.assign(self._at, target, node.value, target)
        lowered = [self._target(t) for t in targets]
        out.append(Set(lowered, self._expr(node.value), node.lineno, isinstance(node, ast.AugAssign)))

    def _target(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self._words |= {node.attr} & STOPS
            self._sets |= {node.attr} if node.value.id == "self" else set()
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            self._target(node.value)  # what is put into it
        elif isinstance(node, ast.Tuple | ast.List):
            return Op("seq", [self._target(e) for e in node.elts])
        return self._expr(node)

    def _if(self, node: ast.If, out: list[Stmt]) -> None:
        test = self._expr(node.test)
        self._syntax.branches += 1
        body, orelse = self._block(node.body), self._block(node.orelse)
        self._syntax.branches -= 1
        out.append(If(test, body, orelse, node.lineno, self._text(node.test)))

    def _match(self, node: ast.Match, out: list[Stmt]) -> None:
        subject, text = self._expr(node.subject), self._text(node.subject)
        branches: list[Stmt] = []
        for case in reversed(node.cases):
            test = subject if case.guard is None else Op("and", [subject, self._expr(case.guard)])
            branches = [If(test, self._block(case.body), branches, case.pattern.lineno, text)]
        out += branches

    def _assert(self, node: ast.Assert, out: list[Stmt]) -> None:
        out.append(Do(self._expr(node.test), node.lineno))

    def _for(self, node: ast.For | ast.AsyncFor, out: list[Stmt]) -> None:
        if isinstance(node, ast.For):
            self._syntax.loop(self._at, node)
        over, target = self._expr(node.iter), self._target(node.target)
        out.append(Loop(target, over, *self._rounds(node), node.lineno, self._text(node.iter)))

    def _rounds(self, node: ast.For | ast.AsyncFor | ast.While) -> tuple[list[Stmt], list[Stmt]]:
        self._syntax.within_loops.append(node)
        body = self._block(node.body)
        self._syntax.within_loops.pop()
        return body, self._block(node.orelse)

    def _while(self, node: ast.While, out: list[Stmt]) -> None:
        test = self._expr(node.test)
        out.append(Loop(None, test, *self._rounds(node), node.lineno, self._text(node.test)))

    def _try(self, node: Any, out: list[Stmt]) -> None:
        handlers = [Handler(_caught(h.type), self._block(h.body), h.lineno) for h in node.handlers]
        out.append(
            Try(self._block(node.body), handlers, self._block(node.orelse), self._block(node.finalbody), node.lineno)
        )

    def _with(self, node: ast.With | ast.AsyncWith, out: list[Stmt]) -> None:
        first = node.items[0].context_expr
        if len(node.items) == 1 and isinstance(first, ast.Call) and dotted(first.func).rpartition(".")[2] == "suppress":
            handler = Handler([dotted(a).rpartition(".")[2] for a in first.args], [], node.lineno)
            out.append(Try(self._block(node.body), [handler], [], [], node.lineno))
            return
        items = [self._expr(i.context_expr) for i in node.items]
        targets = [None if i.optional_vars is None else self._target(i.optional_vars) for i in node.items]
        out.append(With(items, targets, self._block(node.body), node.lineno))

    def _leave(self, node: ast.stmt, out: list[Stmt]) -> None:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Raise):
            value = node.exc
        kind = type(node).__name__.lower()
        out.append(Leave(kind, None if value is None else self._expr(value), node.lineno, node.col_offset))

    def _def(self, node: ast.FunctionDef | ast.AsyncFunctionDef, out: list[Stmt]) -> None:
        inner = self._at > 0
        at = self._define(node)
        if inner:
            out.append(Set([Ref(node.name)], Fn(at), node.lineno))

    def _class(self, node: ast.ClassDef, out: list[Stmt]) -> None:
        name = node.name if not self._owner else f"{self._owner}.{node.name}"
        self.classes.setdefault(name, [b for b in map(dotted, node.bases) if b])
        fields = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        if fields:
            self.fields[name] = fields
        before, self._owner = self._owner, name
        at, self._at = self._at, 0
        body = self._block(node.body)
        self._at = at
        self._owner = before
        out += [s for s in body if not isinstance(s, Set)]

    def _import(self, node: ast.Import, out: list[Stmt]) -> None:
        for alias in node.names:
            if alias.asname:
                self.names[alias.asname] = alias.name
            else:
                self.names.setdefault(alias.name.partition(".")[0], alias.name.partition(".")[0])

    def _from(self, node: ast.ImportFrom, out: list[Stmt]) -> None:
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            full = f"{base}{alias.name}" if base.endswith(".") or not base else f"{base}.{alias.name}"
            name = alias.asname or alias.name
            self.names.setdefault(f"*{len(self.names)}" if name == "*" else name, full)

    # Expressions.

    def _expr(self, node: ast.expr) -> Expr:
        lower = _EXPRESSIONS.get(type(node))
        return _NOTHING if lower is None else lower(self, node)

    def _name(self, node: ast.Name) -> Expr:
        return Ref(node.id)

    def _attribute(self, node: ast.Attribute) -> Expr:
        path = dotted(node)
        return Ref(path) if path else Attr(self._expr(node.value), node.attr)

    def _constant(self, node: ast.Constant) -> Expr:
        value = node.value
        if isinstance(value, str):  # half of a character that takes two is kept by nobody
            return Const(value if len(value) <= _MOST_TEXT and (value.isascii() or value.isprintable()) else "...")
        if isinstance(value, int):
            return Const(value if abs(value) < 1 << 60 else 1 << 60)
        return Const(value) if value is None or isinstance(value, float) else _NOTHING

    def _call(self, node: ast.Call) -> Expr:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        self._words.add("[]" if isinstance(func, ast.Subscript) else name)
        if name == "partial" and node.args:
            self._words.add(dotted(node.args[0]).rpartition(".")[2])
        self._words |= NAMES.intersection(
            a.attr for a in node.args if isinstance(a, ast.Attribute)
        )  # given, not called
        self._syntax.call(self._at, node, name)
        args = [self._expr(a) for a in node.args] + [self._expr(k.value) for k in node.keywords]
        names = [k.arg or "" for k in node.keywords]
        return Call(self._expr(func), args, names, node.lineno, node.col_offset)

    def _bool(self, node: ast.BoolOp) -> Expr:
        return Op("and" if isinstance(node.op, ast.And) else "or", [self._expr(v) for v in node.values])

    def _unary(self, node: ast.UnaryOp) -> Expr:
        inner = self._expr(node.operand)
        if isinstance(node.op, ast.Not):
            return Op("not", [inner])
        if isinstance(node.op, ast.USub) and isinstance(inner, Const) and isinstance(inner.value, int | float):
            return Const(-inner.value)
        return Op("~", [inner])

    def _compare(self, node: ast.Compare) -> Expr:
        parts = [self._member(e) for e in (node.left, *node.comparators)]
        if len(node.ops) == 1:
            return Op(_COMPARE[type(node.ops[0])], parts)
        pairs = zip(node.ops, parts, parts[1:], strict=False)
        return Op("and", [Op(_COMPARE[type(op)], [a, b]) for op, a, b in pairs])

    def _binary(self, node: ast.BinOp) -> Expr:
        return Op(_ARITHMETIC.get(type(node.op), "+"), [self._expr(node.left), self._expr(node.right)])

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set) -> Expr:
        return Op("seq", [self._expr(e) for e in node.elts])

    def _member(self, node: ast.expr) -> Expr:
        """A part of a comparison: who asks for a word in a set asks for no order."""
        return self._sequence(node) if isinstance(node, ast.Set) else self._expr(node)

    def _set_of(self, node: ast.Set) -> Expr:
        """A set; one of several words comes in an order that each process has for itself."""
        words = [e for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        parts = self._sequence(node)
        return Call(Ref("set"), [parts], [], node.lineno, node.col_offset) if len(words) > 1 else parts

    def _dict(self, node: ast.Dict) -> Expr:
        return Op("dict", [self._expr(e) for e in (*filter(None, node.keys), *node.values)])

    def _subscript(self, node: ast.Subscript) -> Expr:
        return Op("[]", [self._expr(node.value), self._expr(node.slice)])

    def _slice(self, node: ast.Slice) -> Expr:
        return Op(":", [self._expr(p) if p is not None else _NOTHING for p in (node.lower, node.upper, node.step)])

    def _either(self, node: ast.IfExp) -> Expr:
        return Op("if", [self._expr(node.test), self._expr(node.body), self._expr(node.orelse)])

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Expr:
        """Parts: what is made, then target and source of each loop, then its conditions."""
        if isinstance(node, ast.DictComp):
            made: Expr = Op("dict", [self._expr(node.key), self._expr(node.value)])
        else:
            made = self._expr(node.elt)
        parts = []
        for loop in node.generators:
            parts += [Op("for", [self._target(loop.target), self._expr(loop.iter), *map(self._expr, loop.ifs)])]
        gathered = Op("comp", [made, *parts])
        is_set = isinstance(node, ast.SetComp)
        return Call(Ref("set"), [gathered], [], node.lineno, node.col_offset) if is_set else gathered

    def _text_with(self, node: ast.JoinedStr) -> Expr:
        return Op("str", [self._expr(v.value) for v in node.values if isinstance(v, ast.FormattedValue)])

    def _within(self, node: ast.Await | ast.Starred | ast.YieldFrom | ast.Yield) -> Expr:
        self._yields |= isinstance(node, ast.Yield | ast.YieldFrom)
        return _NOTHING if node.value is None else self._expr(node.value)

    def _walrus(self, node: ast.NamedExpr) -> Expr:
        return Op(":=", [self._expr(node.target), self._expr(node.value)])

    def _lambda(self, node: ast.Lambda) -> Expr:
        return Fn(self._define(node))


def _caught(node: ast.expr | None) -> list[str]:
    if node is None:
        return []
    return [dotted(e).rpartition(".")[2] for e in (node.elts if isinstance(node, ast.Tuple) else [node])]


_L = Lowering
_STATEMENTS: dict[type[ast.stmt], Callable[[Lowering, Any, list[Stmt]], None]] = {
    ast.Expr: _L._do, ast.Assign: _L._set, ast.AnnAssign: _L._set, ast.AugAssign: _L._set, ast.If: _L._if,
    ast.For: _L._for, ast.AsyncFor: _L._for, ast.While: _L._while, ast.Try: _L._try, ast.TryStar: _L._try,
    ast.With: _L._with, ast.AsyncWith: _L._with, ast.Return: _L._leave, ast.Raise: _L._leave, ast.Break: _L._leave,
    ast.Continue: _L._leave, ast.FunctionDef: _L._def, ast.AsyncFunctionDef: _L._def, ast.ClassDef: _L._class,
    ast.Import: _L._import, ast.ImportFrom: _L._from, ast.Match: _L._match, ast.Assert: _L._assert,
}  # fmt: skip
_EXPRESSIONS: dict[type[ast.expr], Callable[[Lowering, Any], Expr]] = {
    ast.Name: _L._name, ast.Attribute: _L._attribute, ast.Constant: _L._constant, ast.Call: _L._call, ast.BoolOp: _L._bool,
    ast.UnaryOp: _L._unary, ast.Compare: _L._compare, ast.BinOp: _L._binary, ast.Tuple: _L._sequence, ast.List: _L._sequence,
    ast.Set: _L._set_of, ast.Dict: _L._dict, ast.Subscript: _L._subscript, ast.Slice: _L._slice, ast.IfExp: _L._either,
    ast.ListComp: _L._comprehension, ast.SetComp: _L._comprehension, ast.GeneratorExp: _L._comprehension,
    ast.DictComp: _L._comprehension, ast.JoinedStr: _L._text_with, ast.Await: _L._within, ast.Starred: _L._within,
    ast.Yield: _L._within, ast.YieldFrom: _L._within, ast.NamedExpr: _L._walrus, ast.Lambda: _L._lambda,
}  # fmt: skip
