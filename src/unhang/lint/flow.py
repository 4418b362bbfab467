"""One function, followed statement by statement: what it does under which conditions, and where ranks part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from unhang.lint import known, sorts
from unhang.lint.arguments import found_in_environment, found_in_groups, found_in_handles
from unhang.lint.blocks import Blocks
from unhang.lint.conditions import all_of, none_on_some, parameters_asked
from unhang.lint.divergence import Cause, Exit, asked_of_layers
from unhang.lint.doubts import ends_well, works
from unhang.lint.generators import items_given, leave_generator
from unhang.lint.graphs import added, note_bare, note_graph, with_graph
from unhang.lint.ir import Call, Const, Do, Expr, If, Leave, Loop, Op, Ref, Set, Stmt, Try, With
from unhang.lint.keeping import (
    by_conditions,
    empty_lists,
    fill,
    is_plain_dictionary,
    keep,
    note_bar,
    note_first,
    note_put,
    place_of,
    stay_after,
)
from unhang.lint.marks import note_marks, with_words
from unhang.lint.nones import given_with
from unhang.lint.orders import fill_in_order
from unhang.lint.samplers import (
    found_in_shares,
    is_filled_up,
    is_part_of,
    put,
)
from unhang.lint.single import found_in_function, found_in_stop
from unhang.lint.special import (
    ends_process,
    has_own_order,
    is_collected,
    is_share,
    name_of,
    names_raised,
    of_parameters,
    shared_sort,
    value_of_name,
)
from unhang.lint.unnamed import close_messages
from unhang.lint.values import (
    DATA,
    DIFFERS,
    DRAWN,
    FAILED,
    LOCAL,
    LOSS,
    MAYBE_NONE,
    MOST_EFFECTS,
    MOST_WAY,
    OF_DATA,
    PLAIN,
    RAISED,
    RANK,
    TOLD,
    UNEVEN,
    UNKNOWN,
    Place,
    Raised,
    Summary,
    Value,
    either,
    mixed,
)

_WRAPPED = {("wrap", sort) for sort in ("ddp", "ddp without buffers", "apex", "fsdp", "fsdp2", "engine")}


class Frame(Blocks):
    """The run of one function, statement by statement."""

    def run(self, summary: Summary) -> None:
        """Follows the function, and fills its summary."""
        gates = (d for d in self.function.decorators if self.link.project.is_gate(self.file, d))
        name, agreed = next(gates, None), None
        if name is not None:
            self._branch(Cause(Value(RANK, zero=True), self.function.line, f"@{name}", self.path), self.function.body)
        else:
            agreed = self._take_over_decorators()
            self.block(self.function.body)
        summary.raises = frozenset(self.raises | self._refused())
        summary.leaves = [e.cause for e in self.ways_out if e.kind == "raise" and not e.cause.value.params]
        close_messages(self, summary)
        self._close(self.ways_out)
        self._close_pending()
        for found, effect in self._uneven_found:
            self._report(found, effect, True)
        for path, line, causes in self._stops:
            if causes and self.env.get(path, PLAIN).sort != sorts.AGREED:
                found_in_stop(self, path, line, causes[0])
        summary.effects = [of_parameters(e) for e in self.effects if e.hidden != "module"][:MOST_EFFECTS]
        summary.conditional = self.later[:MOST_EFFECTS]
        summary.unifies, summary.wraps, summary.keeps = frozenset(self.unified), self.wraps, self.keeps
        summary.alone, summary.puts, summary.counts = self.alone, self.puts, self.counts
        for key, by in self.puts.items():
            if by:
                self.link.puts[key].add(("", (self.file, self.at), True))
        note_marks(self, summary)
        returned = reduce(either, self._returned) if self._returned else PLAIN
        returned = with_graph(self, returned, self._returned)
        if self._told_by and returned.const is UNKNOWN and returned.sort in (None, sorts.TEST):  # by what is given
            returned = returned._replace(params=returned.params | self._told_by, sort=sorts.TEST)
        if len({is_none for is_none, _ in self._none_returned}) > 1:
            returned = none_on_some(returned, self._none_returned)
        if len(self._returned) > 1 and returned.sort is None:
            returned = with_words(self, returned)
        if self.function.is_generator:
            summary.gives = reduce(either, self._given_out) if self._given_out else PLAIN
            returned = items_given(self)
        summary.returns, summary.none_with = agreed or returned, self._none_with
        found_in_function(self, summary)
        found_in_shares(self, summary)
        found_in_handles(self)
        found_in_groups(self)

    def _refused(self) -> set[Raised]:
        """What it raises by what callers may have agreed on, if there is a collective that others would wait in."""
        told = ((name, parameters_asked(self.function, texts)) for name, texts in self.refuses if self.effects)
        return {(name, TOLD, asked) for name, asked in told if asked}

    def _take_over_decorators(self) -> Value | None:
        """What the functions that a project's decorators put around this one do besides calling it; what they give back instead, if all ranks get it."""
        project, agreed = self.link.project, None
        for name in self.function.decorators:
            symbol = project.symbol_of(self.file, name)
            inner = project.decorating(symbol) if symbol is not None and symbol.kind == "fn" else None
            if symbol is None or inner is None or known.MEETS.isdisjoint(inner[1].words):
                continue
            summary = self.link.summary(symbol.file, inner[0])
            place = Place(self.path, self.function.line, 1, f"@{name}")
            for effect in summary.effects:
                if effect.param < 0 and not effect.needs:
                    group = "" if effect.group.startswith("@") else effect.group
                    self.emit(effect._replace(way=(place, *effect.way)[:MOST_WAY], group=group))
                    agreed = summary.returns if summary.returns.sort == sorts.AGREED else agreed
        return agreed

    def _branch(self, cause: Cause, body: Sequence[Stmt]) -> None:
        """A body that only some ranks come to."""
        mark = len(self.effects)
        self.conditions.append((cause, mark, self.loops))
        self.block(body)
        self.conditions.pop()
        self._part(cause, self._cut(mark), [])

    # Statements.

    def block(self, body: Iterable[Stmt]) -> str:
        """Follows statements; how they end: return, break, continue, raise, exit, or empty where they go on."""
        needs = self.needs
        for s in body:
            self.line_now = s.line
            end = _STATEMENTS[type(s)](self, s)
            if self.conditions and self.conditions[-1][0].value.dep & RANK and works([s]):
                self.alone_before = self.conditions[-1][0].text
            if end:
                self.needs = needs
                return end
        self.needs = needs
        return ""

    def _do(self, s: Do) -> str:
        self.value(s.value)
        note_put(self, s.value)
        if (place := place_of(s.value)) is not None:
            fill(self, place)
        match s.value:
            case Call(func=Ref(path=path)) if path.endswith(".sort") and has_own_order(self.ref(path[:-5])):
                self.env[path[:-5]] = PLAIN
            case Call(func=Ref(path=path)) if path.endswith(".append") and "listing" in self.orders and self.last_given:
                fill_in_order(self, path[:-7], self.last_given[0])
            case Call(func=Ref(path=path)) if path[-7:] in (".append", ".extend"):
                put(self, path, self.loops > 0 and path[:-7] in self._empty)
        return "exit" if ends_process(s.value) else ""

    def _set(self, s: Set) -> str:
        self._line = s.line
        self._empty |= empty_lists(s)
        self._is_empty = isinstance(s.value, Op) and s.value.op == "seq" and not s.value.parts and not s.adds
        value = self.value(s.value)
        if isinstance(s.value, Ref) and value is PLAIN and known.is_method(s.value.path):
            value = Value(sort=("lib", s.value.path))  # another name for a method of a library
        if self.conditions and name_of(s.value) == "len" and self.is_under(RANK):
            value = value._replace(sort=sorts.TAKEN)
        if s.adds and (is_part_of(s.value, s.targets[0]) or is_filled_up("+", [s.targets[0], s.value])):
            value = Value(sort=sorts.PADDED)
        elif s.adds:
            old = self.value(s.targets[0])
            is_filled = old.dep & UNEVEN and not is_share(value)  # what a rank has too few of is added
            value = Value(sort=sorts.PADDED) if is_filled else either(old, value)
        if self.graphs or (isinstance(s.value, Call) and value.sort is None and self.last_given):
            note_graph(self, s, value)
        kept = s.targets[0].path if isinstance(s.targets[0], Ref) else "."
        if "." not in kept and isinstance(s.value, Call) and s.value.given("async_op") == Const(True):
            self.handles.append((kept, s.value))
        for target in s.targets:
            self.assign(target, value, is_certain=not isinstance(s.value, Call | Ref))
            if isinstance(s.value, Op) and s.value.op == "if" and value.dep & RANK and isinstance(target, Ref):
                self.of_first.add(target.path)  # `role = "writer" if rank == 0 else "reader"`
            note_bar(self, target, s.value)
        self._is_empty = False
        return ""

    def assign(self, target: Expr, value: Value, is_certain: bool = False) -> None:
        """Binds a name. What is bound where not every rank comes differs; `is_certain`: its name adds nothing."""
        if isinstance(target, Op) and target.op == "seq":
            parts = value.sort[1] if value.kind == "tuple" else None
            for i, part in enumerate(target.parts):
                fits = parts is not None and len(parts) == len(target.parts)
                one = parts[i] if fits and parts is not None else Value(value.dep, value.params, shared_sort(value, i))
                self.assign(part, one, is_certain)
            return
        if isinstance(target, Op) and target.op == "[]":
            note_put(self, target)
        if isinstance(target, Op) and target.op == "[]" and isinstance(target.parts[0], Ref):
            base = target.parts[0].path
            if base.endswith("environ") and isinstance(target.parts[1], Const):
                found_in_environment(self, target.parts[1].value, value, self._line)
            self._filled.add(base)
            fill(self, target)
            fill_in_order(self, base, value)
            is_part = isinstance(target.parts[1], Const) and isinstance(target.parts[1].value, str)  # no word of others
            dep = (0 if is_part else value.dep & DATA) | (UNEVEN if self._uneven_loops else 0)
            if value.sort == sorts.AGREED and base in self.env and self.env[base].dep & LOSS:
                self.env[base] = value  # what it had is agreed on, one by one
            elif dep and base in self.env:
                self.env[base] = self.env[base]._replace(dep=self.env[base].dep | dep, sort=None)
            return
        if not isinstance(target, Ref):
            return
        last = target.path.rpartition(".")[2]
        if self._is_empty and is_collected(last):
            value = Value(sort=sorts.COLLECTED)
        if self.conditions or self.stayed or self._implied:
            value = self._under_conditions(value, "." in target.path)
            note_first(self, target.path)
        elif self.of_first:
            self.of_first.discard(target.path)
        if last in known.STOPS and "." in target.path and value.const is True and self._line:
            causes = [*(c for c, *_ in self.conditions), *self.stayed]
            causes = [c for c in causes if c.value.dep & RANK or c.value.dep & DIFFERS in (LOCAL, LOSS)]
            self._stops.append((target.path, self._line, causes))
        if not is_certain and not value.dep and value.const is UNKNOWN:
            by_name = value_of_name(last)
            if by_name.dep or (by_name.sort is not None and value is PLAIN):
                value = by_name
        if self.link.has_graphs:
            value = added(self, self.env.get(target.path), value)
        head, _, name = target.path.partition(".")
        if head == "self" and name and "." not in name and not self.is_special:
            value = keep(self, name, value)
        elif head in self.function.parameters and name and "." not in name:
            value = by_conditions(self, value)
            self.marked.add(name)
        self.env[target.path] = value
        me = self.env.get(head)
        if name and value.sort in _WRAPPED:
            self.link.wrapped[self.file, last] = value
        if name and "." not in name and not self.is_special and me is not None and me.kind == "obj":
            self.link.set_attribute(me.sort[1], me.sort[2], name, value)

    def _under_conditions(self, value: Value, is_kept: bool = True) -> Value:
        """What is bound where not every rank comes."""
        for of in [*(c.value for c, *_ in self.conditions), *(c.value for c in self.stayed if is_kept)]:
            is_told = value.sort == sorts.AGREED and of.zero is False and not of.dep & ~RANK
            if value.const is None and is_kept and of.dep & RANK and of.zero is not None and not of.group:
                value = Value(RANK | MAYBE_NONE, value.params, zero=not of.zero)
            elif of.dep & DIFFERS and not is_told:  # what all but the first rank take over from it
                zero = of.zero if value.const is True else None
                is_flag = value.const is not UNKNOWN or (
                    is_kept and of.dep & DIFFERS in (LOCAL, DRAWN)
                )  # else it is None
                sort = sorts.TEST if value.sort is None and is_flag else value.sort
                value = value._replace(dep=value.dep | of.dep & DIFFERS, sort=sort, group=of.group, zero=zero)
        for dep in self._implied:
            value = value._replace(dep=value.dep | dep)
        return value

    def _leave(self, s: Leave) -> str:
        value = PLAIN if s.value is None else self.value(s.value)
        by_rank = self.is_under(RANK)
        if self.function.is_generator:
            leave_generator(self, s, by_rank)
        if s.kind == "yield":
            self._given_out.append(value)
            self._never_ends |= self._endless > 0
            return ""
        if s.kind == "raise" and not (s.value is not None and ends_well(self, s.value)):
            self._raise(s)
            return "raise"
        if s.kind == "return" and self._in_forward() and not self._unsure:
            self._leave_if_none(s)
        inside = self.loops if s.kind not in ("return", "raise") else 0
        self._leaves_together |= any(
            c.value.sort == sorts.AGREED and depth >= self.loops for c, _, depth in self.conditions
        )
        differing = [
            (c, mark, n)
            for n, (c, mark, depth) in enumerate(self.conditions)
            if c.value.dep & DIFFERS and depth >= inside
        ]
        if s.kind == "return":
            self._none_with |= given_with(self.function, [c for c, *_ in self.conditions], value)
            value = value._replace(sort=None) if value.kind == "none with" else value
            if isinstance(value.const, bool) or is_plain_dictionary(s.value):
                self._told_by = self._told_by.union(*(c.value.params for c, *_ in self.conditions))
            self._none_returned.append((value.const is None, all_of([c.value for c, *_ in differing])))
            for cause, *_ in differing:
                zero = cause.value.zero if value.const is True else None
                if value.const is False:
                    zero = not (cause.value.zero or False)
                dep = cause.value.dep & DIFFERS
                if not dep & RAISED and value.const is not None:  # what is not to be had is so on all ranks, perhaps
                    dep &= ~FAILED
                # Else it is what the other ways give.
                is_gone = value.const is None and dep & OF_DATA and not dep & RANK
                sort = sorts.TEST if value.sort is None and value.const is not UNKNOWN and not is_gone else value.sort
                value = value._replace(dep=value.dep | dep, sort=sort, zero=zero, const=UNKNOWN)
            is_empty = isinstance(s.value, Op) and s.value.op in ("dict", "seq") and not s.value.parts
            if is_empty and any(c.value.dep & RANK for c, *_ in differing):
                value = value._replace(dep=value.dep | UNEVEN)
            self._returned.append(value)
            note_bare(self, value)
            if differing and self.function.is_generator and any(c.value.dep & RANK for c, *_ in differing):
                self._ends_unevenly = True
        if s.kind == "raise":  # it ends well: the launcher leaves the others alone
            differing = [d for d in differing if d[0].value.dep & (LOCAL | RANK) == LOCAL]
        if s.kind == "return" and not self.loops and len(self.conditions) == 1:
            stay_after(self, self.conditions[0][0])
        if differing and not self._unsure and not self._no_exits:
            alone = [d for d in differing if d[0].value.dep & RANK and d[0].value.zero]
            cause, mark, depth = (alone or differing[-1:])[0]
            way_out = Exit(s.kind, cause, s.line, s.column, self.effects[mark:], depth, self.needs)
            way_out.is_in_while, way_out.loops = self._round >= 0, self.loops
            way_out.is_first = s.kind == "continue" and len(self.effects) == self._round
            self.ways_out.append(way_out)
        return s.kind

    def _raise(self, s: Leave) -> None:
        """Notes by what it differs whether a rank raises, or what it asks of parameters."""
        why = mixed(*(c.value for c, *_ in self.conditions))
        told = TOLD if any(c.value.sort == sorts.AGREED for c, *_ in self.conditions) else 0
        if s.value is None:
            return
        if why.dep & DIFFERS or why.params or told:
            self.raises |= {(name, why.dep & DIFFERS or told, why.params) for name in names_raised(s.value)}
        else:
            self.refuses += [(name, [c.text for c, *_ in self.conditions]) for name in names_raised(s.value)]

    def _leave_if_none(self, s: Leave) -> None:
        """`if x is None: return`, in a forward: the caller knows whether the layers after it run."""
        cause, mark = self.conditions[-1][:2] if len(self.conditions) == 1 else (None, 0)
        is_asked = cause is not None and bool(asked_of_layers(cause))
        if cause is not None and is_asked and cause.value.params and not cause.value.dep:
            way_out = Exit(s.kind, cause, s.line, s.column, self.effects[mark:], 0, self.needs)
            way_out.is_open = True
            self.ways_out.append(way_out)


_STATEMENTS: dict[type, Callable[[Frame, Any], str]] = {
    Do: Frame._do, Set: Frame._set, If: Frame._if, Leave: Frame._leave, Loop: Frame.loop, With: Frame.with_, Try: Frame._try,
}  # fmt: skip
