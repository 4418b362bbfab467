"""Calls of what is known by its name alone, or is one of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from unhang.lint import known
from unhang.lint.divergence import dimensions
from unhang.lint.ir import Call, Const, Expr, Ref
from unhang.lint.passing import Passing
from unhang.lint.settling import settle
from unhang.lint.special import given_of, in_table, is_batch
from unhang.lint.values import MISSING, MOST_WAY, NONE_BY_BATCH, OWN_BATCH, PLAIN, RANK, Place, Value, either

_REGISTERED = re.compile(r"_?(?:cb|callback|hook|plugin|observer|listener|extension)")
_MOST_REGISTERED = 12
MAY_MISS = MISSING | NONE_BY_BATCH


class Receivers(Passing):
    """The part of a frame that finds who is called."""

    def _one_of(self, node: Call, sorts: Sequence[tuple[Any, ...]], args: list[Value], name: str) -> Value:
        """A call of one of several functions, or of classes: an object of one of them."""
        functions = [s for s in sorts if s[0] in ("fn", "bound")]
        if functions:
            self.guesses += 1  # who has chosen one knows where it is called
            result = self._function(node, self.link.maker(functions), args, name)
            self.guesses -= 1
            return result
        called = [
            ("bound", *t) for s in sorts if s[0] == "obj" and (t := self._called_object(node, s, name)) is not None
        ]
        if called:
            return self._function(node, self.link.maker(called), args, name)
        made = [self._constructor(node, s, args, name) for s in sorts if s[0] == "class"]
        return reduce(either, made) if made else PLAIN

    def _guessed(self, node: Call, target: tuple[int, int], args: list[Value], name: str) -> Value:
        """A call of a method whose class was told by names alone: a doubt, unless nobody else would give that name, or it is one of a collective."""
        owner = node.func.path.rpartition(".")[0] if isinstance(node.func, Ref) else ""
        is_told = name in known.NAMES or _REGISTERED.fullmatch(owner) is not None
        cls = self.link.project.function(*target).owner.rpartition(".")[2].lower()
        is_told |= cls == owner.rpartition(".")[2].replace("_", "").lower()
        is_doubtful = not is_told and self.link.project.by_name(name) is None
        self.guesses += is_doubtful
        result = self._function(node, ("bound", *target), args, name)
        self.guesses -= is_doubtful
        return result

    def _of_nobody(self, owner: str, base: Value, name: str) -> tuple[int, int] | None:
        """The method that is meant where nobody has said of which class the object is."""
        if not owner or base.kind not in ("", "param"):
            return None
        by_receiver = self.link.project.by_receiver(owner, name, is_exact=base.sort is not None)
        return by_receiver or self.link.project.by_name(name) or self._of_registered(owner, name)

    def _of_registered(self, owner: str, name: str) -> tuple[int, int] | None:
        """`for callback in self.callbacks: callback.on_epoch_end()`: the one method of this name that makes collectives, or else the one that sets something there."""
        if _REGISTERED.fullmatch(owner) is None or not self.loops:
            return None
        methods = [(file, at) for _, file, at in self.link.project.methods_called(name)][: _MOST_REGISTERED + 1]
        makers = [m for m in methods if len(methods) <= _MOST_REGISTERED and self.link.summary(*m).effects]
        if not makers and len(methods) <= _MOST_REGISTERED:
            makers = [m for m in methods if self.link.summary(*m).marks]
        return makers[0] if len(makers) == 1 else None

    def _called_object(self, node: Call, sort: tuple[Any, ...], name: str) -> tuple[int, int] | None:
        """The method that runs where an object of the project is called."""
        if self._runs_layers() and self.link.project.is_module(sort[1], sort[2]):
            self._layer(node, sort[2], name)
        found = (self.link.project.method(sort[1], sort[2], method) for method in ("__call__", "forward"))
        return next((f for f in found if f is not None), None)

    def group_of(self, e: Expr) -> str:
        """The text of a group: empty for all ranks, `@2` for parameter 2."""
        if isinstance(e, Const):
            return "" if e.value is None else "?"
        v = self.value(e) if not isinstance(e, Call) else PLAIN
        if v.const is None and not (isinstance(e, Ref) and "." in e.path):
            return ""
        if v.kind == "param":
            names = self.function.parameters  # it may be another function's, kept in a tuple
            return f"@{v.sort[1]}:{names[v.sort[1]]}" if v.sort[1] < len(names) else "?"
        if isinstance(e, Ref):
            return "" if e.path.endswith(("group.WORLD", "GroupMember.WORLD")) else e.path
        if not isinstance(e, Call) or not isinstance(e.func, Ref):
            return "?"
        return f"{e.func.path}({'+cp' if e.given('with_context_parallel') == Const(True) else ''})"

    def ask(self, sort: tuple[Any, ...], name: str) -> None:
        """A property of an object is asked for, which makes collectives, perhaps."""
        at = self.link.project.method(sort[1], sort[2], name)
        if at is not None and self.link.project.function(*at).is_property:
            self._ask_for(at, name)

    def _ask_for(self, at: tuple[int, int], text: str) -> None:
        for e in self.link.summary(*at).effects:
            if e.param < 0 and not e.needs:
                way = (Place(self.path, self.line_now, 0, text), *e.way)[:MOST_WAY]
                self.emit(e._replace(way=way, ifs=e.ifs + e.ifs_here))

    def go_through(self, v: Value) -> None:
        """The items of an object of the project are asked for; it may make collectives for each."""
        at = self.link.project.method(v.sort[1], v.sort[2], "__iter__") if v.kind == "obj" else None
        if at is not None:
            self._ask_for(at, "__iter__()")

    def ask_alike(self, owner: str, name: str) -> None:
        """A property is asked for of what nobody knows, which is called like its class."""
        at = self.link.project.by_receiver(owner, name, is_exact=True)
        if at is not None:
            self.ask(("obj", at[0], self.link.project.function(*at).owner), name)

    def _runs_inside(self, node: Call, inside: Any, args: list[Value], name: str) -> None:
        """The forward of a wrapped module is given what some batches do not have: which of its layers run, this decides."""
        if not isinstance(inside, tuple) or inside[0] != "obj" or not any(v.dep & MAY_MISS for v in args):
            return
        target = self.link.project.method(inside[1], inside[2], "forward")
        if target is not None and not self.is_special:
            given = given_of(node, self.link.project.function(*target).parameters, 1, args)
            for conditional in self.link.summary(*target).conditional:
                if conditional.found.code == "LNT111":
                    settle(self, conditional, given, self.place(node, name))

    def got(self, node: Call, owner: str, base: Value, args: list[Value]) -> Value | None:
        """What `get` gives of a batch, which may not have it, or of a table; None: it is something else that is asked."""
        is_of_batch = not base.dep & RANK and (base.dep & OWN_BATCH or is_batch(owner))
        if len(args) == 1 and is_of_batch and not self.link.project.is_sorted_by(node):
            return Value(base.dep | MISSING, base.params)
        return in_table(base.sort, args[0]) if base.kind == "table" else None

    def group_asked(self, node: Call, owner: str, name: str) -> str:
        """The group in which a call asks for the number of the rank: `get_rank(group)`, `self.pp_group.rank()`."""
        group = node.given("group", 0)
        if group is None:
            return owner if dimensions(owner) else ""
        return self.group_of(group) if "rank" in name else ""
