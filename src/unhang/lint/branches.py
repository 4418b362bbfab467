"""Where ranks part: the branches of a condition, ways out, and what is compared when they are over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from unhang.lint import sorts
from unhang.lint.calls import Calls
from unhang.lint.conditions import (
    as_condition,
    asks_for_others,
    asks_for_own_items,
    asks_for_rank,
    asks_for_shards,
    contradicts,
    implied,
    is_for_one_process,
    is_kept,
    is_left_by_choice,
    is_never_a_rank,
    is_of_first,
    is_once,
    is_refusal,
    parts_asked,
    picks_grads,
    tells,
)
from unhang.lint.divergence import (
    BEFORE_IT,
    GROUPS,
    Cause,
    Exit,
    Pending,
    as_drawn,
    asked_of_layers,
    compared,
    either_way,
    finding_of,
    told,
    worst_first,
)
from unhang.lint.doubts import asked_for_wrapper, asks_property, is_of_caller, takes_orders, works
from unhang.lint.graphs import mark_half, note_heads
from unhang.lint.ir import Expr, Found, If, Op, Ref, Stmt, calls_in
from unhang.lint.keeping import is_dictionary
from unhang.lint.single import close_handler
from unhang.lint.special import as_test, paths_in
from unhang.lint.unnamed import found_alone, part_messages
from unhang.lint.values import (
    DIFFERS,
    DOUBT,
    HELD,
    LOCAL,
    MAYBE,
    PLAIN,
    RANK,
    TOLD,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Needs,
    Value,
    is_of_data,
    joined_env,
    mark_none,
)

_SIDES = {"__enter__": "__exit__", "__exit__": "__enter__", "__aenter__": "__aexit__", "__aexit__": "__aenter__"}
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(eq=False)
class Way:
    """A branch: how it ended, what it bound, made and left by, why it was taken, and what it says of parameters."""

    end: str
    env: dict[str, Value]
    made: list[Effect]
    exits: list[Exit]
    cause: Cause
    needed: Needs


class Branches(Calls):
    """The part of a frame that follows branches. `later`: findings that callers decide."""

    def block(self, body: Iterable[Stmt]) -> str:
        """Follows statements, and says how they end."""
        raise NotImplementedError

    def conditional_part(self, condition: Value, line: int, mark: int, *tests: Expr, middle: int | None = None, text: str = BEFORE_IT) -> None:  # fmt: skip
        """Effects from `mark` on are made only where a part of an expression is true, those from `middle` on only where it is not."""
        is_told = text != BEFORE_IT or any(tells(test, condition) for test in tests)
        there = self._cut(middle) if middle is not None else []
        self._part(Cause(condition, line, text, self.path, is_told=is_told), self._cut(mark), there)

    def _tested(self, s: If) -> Value:
        """What a condition is worth; nothing, where all ranks take the same way though their values differ."""
        v = as_condition(as_test(s.test, self.value(s.test)))
        if v.sort == sorts.PICKED and picks_grads(self.function, s.test):
            v = Value(HELD)
        if v.zero is False and is_left_by_choice(s) and not any(calls_in(s.body)):
            return PLAIN  # `if not sharded and rank != 0: return`
        is_same = (v.dep & (RANK | LOCAL) or v.params) and is_kept(s.test, self.function)
        v = PLAIN if is_same or (v.dep & (LOCAL | RANK) == LOCAL and is_refusal(s.body)) else v
        if is_of_data(v) and self._runs_layers():
            note_heads(self, s)
        return v

    def _is_told(self, test: Expr, v: Value) -> bool:
        """Whether a condition names what makes it differ, itself or by what stands behind its names."""
        named = tells(test, v) or is_of_first(self, test, v)
        named = named or asks_for_rank(self, test) or asks_property(self, test)
        return named or asks_for_own_items(self, test)

    def _way(self, body: list[Stmt], why: Cause) -> tuple[str, set[str]]:
        """Follows a branch: how it ends, and what it puts something into."""
        before, self._filled, alone = self._filled, set(), self.alone_before
        messages = len(self.messages)
        self.conditions.append((why, len(self.effects), self.loops))
        end = self.block(body)
        self.conditions.pop()
        self.alone_before = alone if why.value.dep & RANK else self.alone_before
        if len(self.messages) > messages:
            part_messages(self, why.value, _NAME.findall(why.text), messages)
        filled, self._filled = self._filled, self._filled | before
        return end, filled

    def _if(self, s: If) -> str:
        self.uniform = set()
        condition = self._tested(s)
        uniform = frozenset(self.uniform)
        if condition.const is not UNKNOWN:
            return self.block(s.body if condition.const else s.orelse)
        is_told = self._is_told(s.test, condition)
        is_asked_before = any(c.uniform and c.uniform & paths_in(s.test) for c, *_ in self.conditions)
        is_single = asks_for_others(s.test) or is_never_a_rank(s.test) or asks_for_shards(s.test)
        self._unsure += is_asked_before
        self._no_exits += is_single
        before, exits, mark, needs = self.env, self.ways_out, len(self.effects), self.needs
        rests, old_exits = [len(e.rest) for e in exits], set(exits)
        ways: list[Way] = []
        fills: list[set[str]] = []
        alone = [condition.dep & RANK > 0 and works(body) for body in (s.body, s.orelse)]
        says = implied(self, s.test)
        opposite = condition if condition.zero is None else condition._replace(zero=not condition.zero)
        cause = Cause(condition, s.line, s.text, self.path, uniform, says[1], is_told)
        other = Cause(opposite, s.line, s.text, self.path, uniform, says[0], is_told)
        for body, why, needed in zip((s.body, s.orelse), (cause, other), says, strict=True):
            self.env, self.ways_out, self.needs = dict(before), list(exits), needs | needed
            if body is s.orelse and (bare := asked_for_wrapper(s.test)):
                self.env[bare] = Value(sort=sorts.RAW)
            raised = set(self.raises)
            end, filled = self._way(body, why)
            if condition.dep & RANK and (mine := self.raises - raised):
                alone[len(ways)] = True  # what it refuses, the others do not
                self.raises = raised | {(n, dep & ~TOLD | RANK, params) for n, dep, params in mine}
            fills.append(filled)
            ways.append(
                Way(end, self.env, self._cut(mark), [e for e in self.ways_out if e not in old_exits], why, needed)
            )
        if condition.dep & RANK and condition.zero is not None and alone[0] != alone[1]:
            self.alone_before = s.text
        self._unsure -= is_asked_before
        self._no_exits -= is_single
        self.ways_out, self.needs = exits + self._meet(*ways), needs
        here, there = ways
        self._doubt(s.test, condition, ways)
        self._rejoin(s.test, condition, here, there, before)
        if condition.dep & RANK and not condition.group:
            self._mark_filled(fills[0] ^ fills[1])
        gone = [way.end in ("raise", "exit") for way in ways]
        if any(gone):
            self.effects += [] if all(gone) else there.made if gone[0] else here.made
        elif bool(here.end) == bool(there.end):
            self._part(cause, here.made, there.made)
        else:  # the way out is compared with what follows
            is_compared = self.is_under(DIFFERS)
            stays = there.made if here.end else here.made
            self.effects += stays if is_compared else here.made + there.made
        if (here.made and there.made) or here.end or there.end:  # the others take one of both
            stays = self.effects[mark:] if bool(here.end) == bool(there.end) else there.made if here.end else here.made
            for way_out, n in zip(exits, rests, strict=True):
                if not way_out.is_replaced:
                    way_out.rest[n:] = stays
        if here.end and there.end:
            return here.end if there.end in ("raise", "exit") else there.end
        return ""

    def _rejoin(self, test: Expr, condition: Value, here: Way, there: Way, before: dict[str, Value]) -> None:
        """What names are worth after two branches."""
        if here.end or there.end:
            self.env = there.env if here.end else here.env
            if not (here.end and there.end):
                self.needs |= there.needed if here.end else here.needed
            return
        self.env = joined_env(here.env, there.env)
        if condition.dep & RANK and not (self.loops and isinstance(test, Op) and test.op == "in"):
            mark_none(self.env, here, there, before, self._empty)
        if self.link.has_graphs:
            mark_half(self, test, condition, here.env, there.env)

    def _doubt(self, test: Expr, condition: Value, ways: list[Way]) -> None:
        """What a condition says of what is made under it: that the caller alone knows, that it is made once, that there are no others."""
        here = ways[0]
        is_made = any(way.made for way in ways) and not condition.dep & DIFFERS
        if is_made and not asks_for_shards(test) and is_of_caller(self.function, test):
            for way in ways:
                way.made[:] = [e._replace(doubt=DOUBT) for e in way.made]
        if is_once(test):
            here.made[:] = [e._replace(is_sure=e.is_sure and e.op not in GROUPS) for e in here.made]
        if is_for_one_process(test):
            here.made.clear()

    def _mark_filled(self, paths: set[str]) -> None:
        """What some ranks alone put something into has other keys there."""
        for path in paths:
            head, _, name = path.partition(".")
            me = self.env.get(head)
            if not name and is_dictionary(self, path):
                self.env[path] = Value(UNEVEN, sort=sorts.OWN_KEYS)
            if name and "." not in name and me is not None and me.kind == "obj":
                self.link.set_attribute(me.sort[1], me.sort[2], name, Value(UNEVEN))

    def _meet(self, *ways: Way) -> list[Exit]:
        """The ways out of two branches that are still to be compared with what follows."""
        left = []
        for way, other in zip(ways, reversed(ways), strict=True):
            for one in way.exits:
                if one.kind == "except":
                    left.append(one)
                elif one.cause is way.cause:  # the other ranks take the other branch
                    one.rest = list(other.made)
                    if way.end and other.end and one.made == way.made:
                        continue  # both branches end: they are compared with each other
                    left.append(one)
                elif one.depth < len(self.conditions):
                    left.append(one)
                elif way.end in ("raise", "exit"):
                    continue
                elif way.end == "return" or (way.end and way.end == one.kind):
                    self._close([one])
                else:
                    left.append(one)
        return left

    def _part(self, cause: Cause, here: list[Effect], there: list[Effect]) -> None:
        """Two branches are compared; what is not made on both sides is pending or found."""
        differs = cause.value.dep & DIFFERS
        found_alone(self, cause, here, there)
        only_here, only_there = compared(here, there, cause)
        if not differs and self._in_forward() and (asked := asked_of_layers(cause)):
            self._leave_out(cause, here, there, asked)
        is_told = cause.value.dep & RANK and (takes_orders(only_here) or takes_orders(only_there))
        if is_told or (not only_here and not only_there):
            self.effects += sorted([there, here], key=lambda made: (len(made), any(e.after for e in made)))[-1]
            return
        if not differs or self.is_alone():
            for i in cause.value.params:
                for effect in (only_here or only_there)[:1]:
                    if effect.param < 0 and not effect.group and effect.is_sure:
                        is_part = parts_asked(cause.text, self.function.parameters[i])
                        test = "is None" if cause.value.sort == ("none test",) else is_part
                        self.later.append(Conditional(i, test, finding_of(cause, effect, self.path), self.path))
            self.effects += either_way(here, there)
            return
        single = set(map(id, only_here + only_there))
        self.effects += [e for e in here + there if id(e) not in single]
        if only_here and only_there and cause.value.dep & RANK:
            self._report_both(cause, only_here, only_there)
            return
        for effects, zero in (
            (only_here, cause.value.zero),
            (only_there, None if cause.value.zero is None else not cause.value.zero),
        ):
            if effects:
                self._pending.append(Pending(cause._replace(value=cause.value._replace(zero=zero)), effects))

    def _report_both(self, cause: Cause, here: list[Effect], there: list[Effect]) -> None:
        """Two sides make something else: what is certain is told before what a parameter decides."""
        one, other = min(here, key=_is_open), min(there, key=_is_open)
        if _is_open(one) and not _is_open(other) and all(e.method != "()" for e in here):
            one, other = other, one  # a function that was given may well make the same
        is_sure = _is_open(one) or not _is_open(other)
        if not is_sure and any(_is_open(e) and e.method == "()" for e in there):
            one, other, is_sure = other, one, True
        self._report(finding_of(cause, one, self.path, other=other if is_sure else None), one)

    def _report(self, found: Found, effect: Effect, is_passed: bool = False) -> None:
        if self.is_special and not is_passed and effect.param < 0:  # it is found where the caller gives the value
            return
        if self._is_other_side(effect):
            return
        inside = self.function.inside
        if inside > 0 and effect.way[-1].text.rpartition(".")[2] in self.link.project.function(self.file, inside).words:
            return  # a part of what the function around it does: the others answer there
        if effect.param >= 0:  # it is one only where the caller gives a module that makes collectives
            self.later.append(Conditional(effect.param, effect.method, found, self.path))
        else:
            self.link.report(self.path, found)

    def _is_other_side(self, effect: Effect) -> bool:
        """Whether the ranks that do not make it as they enter a context make the same call as they leave it, or the other way round."""
        other = _SIDES.get(self.function.name)
        name = effect.way[0].text.removesuffix("()").rpartition(".")[2]
        alike = (f for f in self.source.functions if f.name == other and f.owner == self.function.owner)
        return other is not None and any(name in f.words for f in alike)

    def _close_pending(self) -> None:
        """Pairs of `if rank != 0: barrier()` and `if rank == 0: barrier()` are one barrier of all; the rest is found."""
        left = list(self._pending)
        while left:
            one = left.pop(0)
            keys = [e.key for e in one.effects]
            for other in left:
                opposite = one.cause.value.zero is None or other.cause.value.zero != one.cause.value.zero
                theirs = [e.key for e in other.effects]
                if opposite and one.cause.line != other.cause.line and (theirs == keys or theirs[-len(keys) :] == keys):
                    left.remove(other)  # what it makes before that it may make on its own, or not: that is not clear
                    self.effects += one.effects
                    break
            else:
                for effect in told(sorted(one.effects, key=lambda e: e.param >= 0 or e.op == "destroy")):
                    self._report(finding_of(one.cause, effect, self.path), effect)

    def _close(self, exits: Iterable[Exit]) -> None:
        for way_out in exits:
            if way_out.kind == "except":
                close_handler(self, way_out.made, way_out.rest, way_out.cause.text)
                continue
            if way_out.is_open:
                self._leave_open(way_out)
                continue
            known_there = way_out.cause.needed
            rest = [e for e in way_out.rest if not contradicts(e.needs - known_there, way_out.needs)]
            missed, extra = compared(rest, way_out.made, way_out.cause)
            missed, extra = worst_first(missed), worst_first(extra)
            if way_out.kind == "break" and not missed and way_out.cause.value.dep & DIFFERS == MAYBE:
                again = (e for e in rest if e.param >= 0 and e.method == "()" and self._has_made(e, way_out.cause.text))
                missed = [e._replace(method="wrapped") for e in list(again)[:1]]  # if it is wrapped
            if way_out.kind != "continue":  # who is done early leaves the loop over all layers
                missed = [e for e in missed if e.op != "pick"]
            if not self.link.needs_all:  # which layers run is nothing to the others
                missed = sorted(missed, key=lambda e: e.hidden == "module")
            if missed and waits_for_orders(way_out, missed):
                continue
            if takes_orders(way_out.made) or (way_out.kind == "return" and takes_orders(missed)):
                continue
            if missed:
                is_served = way_out.is_in_while and missed[0].op == "broadcast"  # the others take orders
                at = way_out.kind, way_out.line, way_out.column
                for one in told(missed):
                    found = finding_of(way_out.cause, one, self.path, exit_at=at, doubt=DOUBT * is_served)
                    self._report(found, one, True)
            elif extra and (way_out.kind == "return" or (not way_out.rest and not way_out.cause.value.dep & RANK)):
                self._report(finding_of(way_out.cause, extra[0], self.path), extra[0], True)

    def _leave_out(self, cause: Cause, here: list[Effect], there: list[Effect], asked: str) -> None:
        """Layers that run on one side of a condition which asks if there is anything in a parameter, or what it is."""
        keys = {e.key for e in here} & {e.key for e in there}
        alone = [e for e in here + there if e.hidden == "module" and e.is_sure and e.key not in keys]
        for effect in alone[:1]:
            found = finding_of(as_drawn(cause) if asked == "is drawn" else cause, effect, self.path)
            self.later += [Conditional(i, asked, found, self.path) for i in cause.value.params]

    def _has_made(self, effect: Effect, text: str) -> bool:
        """Whether what a condition asks for comes from a call of the parameter that makes an effect."""
        names, made = set(re.findall(r"[a-z_]\w*", text)), self.function.parameters[effect.param]
        for n in sorted(self.function.bindings, key=lambda n: -n.line):
            if any(isinstance(t, Ref) and t.path in names for t in n.targets):
                names |= {name for path in paths_in(n.value) for name in (path, path.partition(".")[0])} - {"self"}
        return made in names

    def _leave_open(self, way_out: Exit) -> None:
        """Layers that do not run where a parameter is None, or has nothing in it: a finding, if it is so on some ranks."""
        made = {e.key for e in way_out.made}
        missed = [e for e in way_out.rest if e.hidden == "module" and e.is_sure and e.key not in made]
        asked = asked_of_layers(way_out.cause)
        for effect in missed[:1]:
            found = finding_of(as_drawn(way_out.cause) if asked == "is drawn" else way_out.cause, effect, self.path)
            self.later += [Conditional(i, asked, found, self.path) for i in way_out.cause.value.params]


def waits_for_orders(way_out: Exit, missed: list[Effect]) -> bool:
    """Whether some ranks begin the round anew while the others wait for what comes next: that one is the next."""
    by_rank = way_out.cause.value.dep & DIFFERS == RANK and way_out.kind == "continue"
    is_told = bool(way_out.cause.value.zero) and all(e.op == "broadcast" for e in missed)
    return by_rank and (is_told or way_out.is_first)


def _is_open(e: Effect) -> bool:
    return e.param >= 0
