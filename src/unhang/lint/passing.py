"""Calls of functions of the project: who is called, also where names alone tell it, and what that does to the caller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

from unhang.lint import known, sorts
from unhang.lint.divergence import dimensions, is_replaced
from unhang.lint.generators import ends_by_setting
from unhang.lint.graphs import found_in_backward
from unhang.lint.ir import Call, Const, Expr, Function, Ref
from unhang.lint.keeping import by_some, take_over, take_over_puts
from unhang.lint.marks import mark
from unhang.lint.nones import as_given
from unhang.lint.operators import Operators
from unhang.lint.samplers import falls_short, holds_items, scores_share
from unhang.lint.settling import as_drawn, plain_length, raised_by_call, settle, worth
from unhang.lint.special import (
    given_of,
    in_table,
    is_batch,
    is_share,
    makes_batches,
    value_of_name,
)
from unhang.lint.tensors import AGREEING, agrees_by_name
from unhang.lint.unnamed import is_counted_up, take_messages
from unhang.lint.values import (
    DATA,
    DIFFERS,
    DOUBT,
    DRAWN,
    HELD,
    LOCAL,
    LOSS,
    MAYBE,
    MAYBE_NONE,
    MISSING,
    MOST_WAY,
    NO_PARAMS,
    NONE_BY_BATCH,
    OWN_BATCH,
    OWN_STATE,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Effect,
    Given,
    Needs,
    Place,
    Summary,
    Value,
    Wanted,
    either,
    is_as_wanted,
    mixed,
)
from unhang.lint.wellknown import items_of

_REGISTERED = re.compile(r"_?(?:cb|callback|hook|plugin|observer|listener|extension)")
_MOST_REGISTERED = 12
MAY_MISS = MISSING | NONE_BY_BATCH
_IN_PARTS = re.compile(r"^(?!.*(?:even|equal|pad|balance|tensor)).*(?:split|chunk|partition|divide)")
_EVENS = re.compile(r"(?:^|_)(?:pad|even|evenly|divisible|equal|equali[sz]ed?)(?:_|$)")
_LOADED = ("many", sorts.BATCH)
_PARTS_RANKS = RANK | OWN_STATE | LOSS | HELD | UNEVEN
_OF_LOOPS = {"LNT107", "LNT110", "LNT115"}
_KEEP = {"cache", "lru_cache", "cached_property"}
_WIDTHS = {"tuple", "words", "widest"}  # of the parts of a batch
# Whatever is agreed on of their parts, they stay what they are.
_OBJECTS = {"obj", "wrap", "one of", "fn", "bound", "class"}
_CARRIED = {"", "own keys", "out", "share", "test", "picked", "filled", "rank", "local rank"}


@cache
def divides_evenly(name: str) -> bool:
    """Whether a function fills up or cuts what it is given, by its name."""
    return _EVENS.search(name) is not None


class Passing(Operators):
    """The part of a frame that calls functions of the project."""

    # Who is called.

    def _one_of(self, node: Call, several: Sequence[tuple[Any, ...]], args: list[Value], name: str) -> Value:
        """A call of one of several functions, or of classes: an object of one of them."""
        functions = [s for s in several if s[0] in ("fn", "bound")]
        if functions:
            self.guesses += 1  # who has chosen one knows where it is called
            result = self._function(node, self.link.maker(functions), args, name)
            self.guesses -= 1
            return result
        called = [
            ("bound", *t) for s in several if s[0] == "obj" and (t := self._called_object(node, s, name)) is not None
        ]
        if called:
            return self._function(node, self.link.maker(called), args, name)
        made = [self._constructor(node, s, args, name) for s in several if s[0] == "class"]
        return reduce(either, made) if made else PLAIN

    def _guessed(self, node: Call, target: tuple[int, int], args: list[Value], name: str) -> Value:
        """A call of a method whose class was told by names alone: a doubt, unless nobody else would give that name, or it is one of a collective."""
        owner = node.func.path.rpartition(".")[0] if isinstance(node.func, Ref) else ""
        is_told = name in known.NAMES or _REGISTERED.fullmatch(owner) is not None
        cls = self.link.project.function(*target).owner.rpartition(".")[2].lower()
        is_told |= cls == owner.rpartition(".")[2].replace("_", "").lower()
        is_told = is_told or self.link.is_made_as(*target, owner) or self.link.is_used_as(self, *target, owner)
        self.guesses += not is_told
        result = self._function(node, ("bound", *target), args, name)
        self.guesses -= not is_told
        return result

    def _of_nobody(self, owner: str, base: Value, name: str) -> tuple[int, int] | None:
        """The method that is meant where nobody has said of which class the object is."""
        if not owner or base.kind not in ("", "param", "inner"):
            return None
        by_receiver = self.link.project.by_receiver(owner, name, is_exact=base.sort is not None)
        named = by_receiver or self.link.project.by_name(name) or self._of_registered(owner, name)
        return named or self.link.by_last_word(owner, name)

    def _of_registered(self, owner: str, name: str) -> tuple[int, int] | None:
        """`for callback in self.callbacks: callback.on_epoch_end()`: the one method of this name that makes collectives, or else the one that sets something there."""
        if _REGISTERED.fullmatch(owner) is None or not self.loops:
            return None
        methods = [(file, at) for _, file, at in self.link.project.methods_called(name)][: _MOST_REGISTERED + 1]
        makers = [m for m in methods if len(methods) <= _MOST_REGISTERED and self.link.summary(*m).effects]
        if not makers and len(methods) <= _MOST_REGISTERED:
            makers = [m for m in methods if (s := self.link.summary(*m)).marks or s.resets]
        return makers[0] if len(makers) == 1 else None

    def _called_object(self, node: Call, sort: tuple[Any, ...], name: str) -> tuple[int, int] | None:
        """The method that runs where an object of the project is called."""
        if self._runs_layers() and self.link.project.is_module(sort[1], sort[2]):
            self._layer(node, sort[2], name)
        found = (self.link.project.method(sort[1], sort[2], method) for method in ("__call__", "forward"))
        return next((f for f in found if f is not None), None)

    def _runs_inside(self, node: Call, inside: Any, args: list[Value], name: str) -> Value:
        """What the forward of a wrapped module gives. Where it is given what some batches do not have, this decides which of its layers run."""
        is_told = isinstance(inside, tuple) and inside[0] == "obj"
        target = self.link.project.method(inside[1], inside[2], "forward") if is_told else None
        if target is None:
            return PLAIN
        summary = self.link.summary(*target)
        if not self.is_special and any(v.dep & (MAY_MISS | OWN_BATCH | DRAWN) or v.sort == sorts.TEST for v in args):
            given = given_of(node, self.link.project.function(*target).parameters, 1, args)
            for conditional in summary.conditional:
                if conditional.found.code in ("LNT111", "LNT414"):
                    settle(self, conditional, given, self.place(node, name))
        return summary.returns

    def got(self, node: Call, owner: str, base: Value, args: list[Value]) -> Value | None:
        """What `get` gives of a batch, which may not have it, or of a table; None: it is something else that is asked."""
        is_of_batch = not base.dep & RANK and (base.dep & OWN_BATCH or is_batch(owner))
        if len(args) == 1 and is_of_batch and not self.link.project.is_sorted_by(node):
            return Value(base.dep | MISSING, base.params)
        if base.sort == sorts.OWN_KEYS and base.dep & LOCAL and len(args) == 1:
            return Value(LOCAL, sort=sorts.TEST)
        is_open = base.kind in ("", "param", "test") and not base.dep & RANK
        if is_open and base.dep & (LOSS | MAYBE) | len(base.params):
            return Value(base.dep & (LOSS | MAYBE), base.params, base.sort if base.sort == sorts.TEST else None)
        return in_table(base.sort, args[0]) if base.kind == "table" else None

    def group_asked(self, node: Call, owner: str, name: str) -> str:
        """The group in which a call asks for the number of the rank: `get_rank(group)`, `self.pp_group.rank()`."""
        group = node.given("group", 0)
        if group is None:
            return owner if dimensions(owner) else ""
        is_all = isinstance(group, Ref) and self.ref(group.path).sort == sorts.OF_ALL
        return self.group_of(group) if "rank" in name and not is_all else ""

    def group_of(self, e: Expr) -> str:
        """The text of a group: empty for all ranks, `@2` for parameter 2."""
        if isinstance(e, Const):
            return "" if e.value is None else "?"
        v = self.value(e) if not isinstance(e, Call) else PLAIN
        if v.const is None and not (isinstance(e, Ref) and "." in e.path):
            return ""
        if v.kind == "param":
            names = self.function.parameters  # it may be another function's, kept in a tuple
            is_own = v.sort[1] < len(names) and not is_replaced(self.function, names[v.sort[1]])
            return f"@{v.sort[1]}:{names[v.sort[1]]}" if is_own else "?"
        if isinstance(e, Ref):
            path = v.sort[1] if v.kind == "ext" and "." in v.sort[1] else e.path  # `group = dist.group.WORLD`, before
            return "" if path.endswith(("group.WORLD", "GroupMember.WORLD")) else e.path
        if not isinstance(e, Call) or not isinstance(e.func, Ref):
            return "?"
        return f"{e.func.path}({'+cp' if e.given('with_context_parallel') == Const(True) else ''})"

    # What it does to its caller.

    def _constructor(self, node: Call, sort: tuple[Any, ...], args: list[Value], name: str) -> Value:
        target = self.link.project.method(sort[1], sort[2], "__init__")
        if target is not None:
            function = self.link.project.function(*target)
            given = given_of(node, function.parameters, 1, args)
            self.link.note_constructor(sort, function.parameters, given)
            self._function(node, ("bound", *target), args, name)
            goes = self.link.project.method(sort[1], sort[2], "__iter__")
            returned = self.link.summary(*goes).returns if goes is not None else PLAIN
            if ends_by_setting(self.link.project, sort, returned, lambda i: worth(function, given, i)):
                return Value(UNEVEN, sort=("obj", sort[1], sort[2]))
        else:  # of a data class
            fields = self.link.project.fields_of(sort[1], sort[2])
            plain = len(node.args) - len(node.names)
            for field, value in (*zip(fields, args[:plain], strict=False), *zip(node.names, args[plain:], strict=True)):
                self.link.set_attribute(sort[1], sort[2], field, value)
        is_share_of = any(is_share(v) or items_of(self, v) for v in args)
        is_uneven = is_share_of and (
            holds_items(self.link.project, sort[1], sort[2]) or falls_short(self.link.project, sort, args)
        )
        return Value(UNEVEN * is_uneven, sort=("obj", sort[1], sort[2]))

    def _function(self, node: Call, sort: tuple[Any, ...], args: list[Value], name: str) -> Value:
        """A call of a function of the project: its effects are the caller's."""
        file, at = self.link.project.implementation(sort[1], sort[2])
        function = self.link.project.function(file, at)
        summary = self.link.summary(file, at)
        found_in_backward(self, node, file, function, args, name)
        fills = sorts.PADDED if divides_evenly(function.name) else None
        if summary.is_empty():
            return Value(sort=fills) if fills else PLAIN
        offset = 1 if sort[0] == "bound" and (function.is_method or function.has_context) else 0
        given = given_of(node, function.parameters, offset, args)
        place = Place(self.path, node.line, node.column, f"{name or function.name}()")
        self.link.callers.setdefault((file, at), set()).add((self.file, self.at))
        owner = node.func.path.rpartition(".")[0] if isinstance(node.func, Ref) else ""
        general = summary
        special = self._worth_following(function, summary, given)
        if special:
            summary = self.link.summary(file, at, special)
        is_kept = any(d.rpartition(".")[2] in _KEEP for d in function.decorators)
        for effect in summary.effects:
            if is_kept:  # its result may be there already
                effect = effect._replace(doubt=DOUBT)
            if effect.group.startswith("self.") and owner not in ("", "self"):
                effect = effect._replace(group=owner + effect.group[4:])
            self._take_over(effect, given, place, function)
        more = [c for c in summary.conditional if c.found.code in _OF_LOOPS and c not in general.conditional]
        for conditional in (*general.conditional, *more):
            if not self.is_special or conditional.found.code == "LNT303" or conditional in more:
                settle(self, conditional, given, place)
        take_messages(self, summary, place)
        for i, wrapped in summary.wraps.items():
            expr = given[i][0] if i in given else None
            if isinstance(expr, Ref):
                self.wrap_in_place(expr.path, wrapped)
        called = node.func.path if function.name == "__call__" and isinstance(node.func, Ref) else owner
        if not self.is_special:
            self._change(sort, called, function, summary, given)
        if summary.marks or summary.resets:
            mark(self, summary, given)
        self.leave_with(summary.leaves, node)
        self.raises |= raised_by_call(summary.raises, given)
        agrees = agrees_by_name(function.name) and any(
            e.op in AGREEING and e.is_sure and not e.group for e in summary.effects
        )
        for i in given if agrees else summary.unifies:
            expr, v = given.get(i, (None, PLAIN))
            if isinstance(expr, Ref) and v.kind not in _OBJECTS:
                self.env[expr.path] = Value(sort=sorts.AGREED)
        is_made_of_share = any(is_share(v) or items_of(self, v) for _, v in given.values())
        if is_made_of_share and not summary.returns.dep and makes_batches(function.name):
            return Value(UNEVEN, sort=("share", "batches"))
        if _IN_PARTS.search(function.name) and not summary.returns.dep and summary.returns.kind != "sized":
            return Value(sort=("parts",))
        if fills and not agrees and not summary.returns.dep:
            return Value(sort=fills)
        if "single_device" in function.name:  # what it wraps makes no collectives
            return PLAIN
        return Value(sort=sorts.AGREED) if agrees else as_given(self._result(summary, given), general, given)

    def _change(
        self, sort: tuple[Any, ...], called: str, function: Function, summary: Summary,
        given: Given,
    ) -> None:  # fmt: skip
        """What a call changes in the object whose method it is, and in those whose methods it was given."""
        if called and summary.keeps:
            take_over(self, called, summary.keeps, given)
        if called and summary.puts:
            take_over_puts(self, summary.puts, function, called)
        if called and sort[0] == "bound" and function.sets:
            by_some(self, sort, called)
        for i, alone in summary.alone.items():
            e, v = given.get(i, (None, PLAIN))
            if isinstance(e, Ref) and v.kind == "bound":
                by_some(self, v.sort, e.path.rpartition(".")[0], alone)

    def _worth_following(self, function: Function, summary: Summary, given: Given) -> frozenset[tuple[int, Value]]:
        """What this call gives that may part the ranks in a function with collectives, or that decides which of them it makes."""
        out: dict[int, Value] = {}
        by_rank = summary.returns.dep & RANK and not summary.effects
        if not summary.effects and not by_rank:
            none = ((i, v) for i, (_, v) in given.items() if i in summary.none_with and v.dep & MAYBE_NONE)
            return frozenset((i, v._replace(params=NO_PARAMS)) for i, v in none if v.zero is not None and not v.group)
        asked = {i for e in summary.effects for i, _ in e.needs} if not by_rank else {*range(len(function.parameters))}
        for i, name in enumerate(function.parameters):
            v = worth(function, given, i)
            is_share_of = v.kind == "obj" and bool(v.dep & UNEVEN or items_of(self, v))  # to go through
            v = v._replace(dep=v.dep | UNEVEN) if is_share_of else v
            is_plain = name[0] != "*" and (
                value_of_name(name) is PLAIN or ((is_share(v) or is_share_of) and value_of_name(name).sort == _LOADED)
            )
            parts = v.sort in (sorts.PICKED, sorts.FILLED) or v.dep & _PARTS_RANKS
            parts = parts or (i in summary.counts and v.dep & OWN_BATCH)
            is_none = v.dep & MAYBE_NONE and v.zero is not None and not v.group
            if is_plain and not by_rank and parts and (v.kind in _CARRIED or is_share_of or is_none):
                out[i] = v._replace(params=NO_PARAMS, const=UNKNOWN)
            elif v.kind == "many" and v.sort[1] is not None and v.sort[1][0] in _WIDTHS:
                out[i] = v
            elif is_plain and i in asked and (v.const is None or isinstance(v.const, bool)):
                out[i] = Value(const=v.const)
        return frozenset(out.items())

    def _take_over(self, effect: Effect, given: Given, place: Place, function: Function) -> None:
        needs = self._still_needed(effect.needs, given, function)
        if needs is None:
            return
        words = [(given[i], w) for i, w in effect.needs if isinstance(w, tuple) and i in given]
        open_words = [w for (e, v), w in words if v.const is UNKNOWN and not is_counted_up(self.function, e)]
        is_open = bool(open_words) and any(w[0] == "in" for _, w in words)
        is_open &= len(needs) < len(effect.needs)  # who can tell that it is this word?
        doubt = DOUBT if is_open else effect.doubt
        way = (place, *effect.way)[:MOST_WAY]
        group = effect.group
        if group.startswith("@"):
            i = int(group[1:].partition(":")[0])
            group = self.group_of(given[i][0]) if i in given else "" if function.default_of(i) == Const(None) else "?"
        if effect.param < 0:
            ifs = effect.ifs + effect.ifs_here
            self.emit(effect._replace(way=way, group=group, needs=needs, ifs=ifs, doubt=doubt))
            return
        if effect.param not in given:
            return
        v = given[effect.param][1]
        self.raises |= self.link.raised_by(v, effect.method)
        for made in (*self.link.made_by(v, effect.method), *self.layers(v, effect.method)):
            self.emit(made._replace(way=(*way, *made.way)[:MOST_WAY]))

    def _still_needed(self, needs: Needs, given: Given, function: Function) -> Needs | None:
        """What our own parameters must be for an effect of a call; None: this call does not make it."""
        ours = set[tuple[int | str, Wanted]]()
        for i, wanted in needs:
            if isinstance(i, str):
                continue
            v = worth(function, given, i)
            own = self.parameter(given[i][0].path) if i in given and isinstance(given[i][0], Ref) else -1  # type: ignore[union-attr]
            if v.const is not UNKNOWN:
                if not is_as_wanted(v.const, wanted):
                    return None
            elif own >= 0:
                ours.add((own, wanted))
            elif v.kind == "param":
                ours.add((v.sort[1], wanted))
            elif wanted == "none" and i in given and not v.dep & MAYBE_NONE:
                return None
        return frozenset(ours)

    def _result(self, summary: Summary, given: Given) -> Value:
        r = summary.returns
        if r.kind == "wrap" and isinstance(r.const, tuple) and r.const[0] == "param":
            inside = given[r.const[1]][1].sort if r.const[1] in given else None
            return r._replace(const=inside[:3] if inside is not None and inside[0] in ("obj", "param") else UNKNOWN)
        joined = mixed(*(as_drawn(plain_length(given[i][1])) for i in r.params if i in given))
        sort: Any = r.sort if r.sort != sorts.DRAW or joined.params else None
        if sort == sorts.OWN_KEYS and r.params:  # its keys are words of what is given
            if joined.dep & DATA:
                return Value(UNEVEN, joined.params, sorts.OWN_KEYS, const=r.const)
            return Value(r.dep, joined.params, sorts.OWN_KEYS if joined.params or r.dep else None, const=r.const)
        if r.kind == "sized":  # as many as the caller says
            by = mixed(*(plain_length(given[i][1]) for i in sort[1] if i in given))
            if by.dep & (DATA | RANK | UNEVEN):
                return Value(UNEVEN, joined.params, ("share", "range"))
            return Value(r.dep | joined.dep & DIFFERS, joined.params, ("sized", by.params) if by.params else None)
        v = given.get(sort[1], (None, PLAIN))[1] if r.kind in ("param", "of", "passes") else PLAIN
        if r.kind == "param":
            return v
        if r.kind == "of":
            sort = ("out" if v.kind == "wrap" else "of", v.sort[1]) if v.kind in ("wrap", "param") else None
        elif r.kind == "tuple":
            sort = ("tuple", tuple(self._result(Summary(returns=v), given) for v in sort[1]))
        elif r.kind == "passes":  # a generator that goes through what it is given
            if v.dep & UNEVEN:
                return Value(UNEVEN, sort=("share", "generator"))
            sort = ("passes", v.sort[1]) if v.kind == "param" else None
        elif r.kind == "zip":
            sort = None
        dep = r.dep
        if dep & MAYBE:  # it is what a given module made of this rank's batch
            kinds = {v.kind for _, v in given.values()}
            is_own = "wrap" in kinds or scores_share(self, given)
            dep = dep & ~MAYBE | (LOSS if is_own else MAYBE if "param" in kinds else 0)
            dep &= -1 if dep & DIFFERS else ~NONE_BY_BATCH
        return Value(dep | (joined.dep & DIFFERS), joined.params, sort, r.zero, r.group, r.const)
