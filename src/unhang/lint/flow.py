"""One function, followed statement by statement: what it does under which conditions, and where ranks part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unhang.lint import known
from unhang.lint.calls import Calls
from unhang.lint.divergence import Cause, compared, conditional_of, finding_of
from unhang.lint.ir import Attr, Call, Const, Do, Expr, Found, If, Leave, Loop, Op, Ref, Set, Stmt, Try, With
from unhang.lint.link import Link, is_one_rank
from unhang.lint.single import (
    close_handler,
    found_in_call,
    found_in_endless_loop,
    found_in_function,
    found_in_handler,
    found_in_stop,
    is_broad_handler,
    is_feature_test,
)
from unhang.lint.special import element, paths_in, value_of_name
from unhang.lint.values import (
    AGREED,
    DATA,
    DIFFERS,
    MAYBE,
    MAYBE_NONE,
    MOST_EFFECTS,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Summary,
    Value,
    either,
)  # fmt: skip


@dataclass(eq=False)
class Exit:
    """A way out that not every rank takes. `made`: what its branch did before; `rest`: what the others do after it.

    `depth`: how many conditions stand around the one that parts the ranks.
    """

    kind: str
    cause: Cause
    line: int
    column: int
    made: list[Effect]
    depth: int
    rest: list[Effect] = field(default_factory=list)


@dataclass(eq=False)
class Way:
    """A branch: how it ended, what it bound, made and left by, why it was taken, and what it says of parameters."""

    end: str
    env: dict[str, Value]
    made: list[Effect]
    exits: list[Exit]
    cause: Cause
    needed: frozenset[tuple[int, bool | str]]


@dataclass(eq=False)
class Pending:
    """Collectives under a condition on the rank, without a partner so far."""

    cause: Cause
    effects: list[Effect]


class Frame(Calls):
    """The run of one function. `later`: what its callers decide."""

    def __init__(self, link: Link, file: int, at: int) -> None:
        self.link, self.file, self.at = link, file, at
        of = link.project.files[file]
        self.path, self.function = of.path, of.functions[at]
        self.env: dict[str, Value] = {}
        self.outer = link.closures.get((file, at), {})
        self.effects: list[Effect] = []
        self.conditions: list[tuple[Cause, int, int]] = []
        self.no_sync, self.loops, self.uneven_is_fine = 0, 0, 0
        self.unified: set[int] = set()
        self.later: list[Conditional] = []
        self._exits: list[Exit] = []
        self._pending: list[Pending] = []
        self._returned: list[Value] = []
        self._none_returned: list[tuple[bool, bool]] = []
        self._ends_unevenly = False
        self._unsure, self._no_exits = 0, 0
        self._line = 0
        self._stops: list[tuple[str, int, list[Cause]]] = []
        self._implied: list[int] = []
        self.needs: frozenset[tuple[int, bool | str]] = frozenset()
        self.uniform: set[str] = set()
        for i, name in enumerate(self.function.parameters):
            self.env[name.lstrip("*")] = self._parameter(i, name)

    def _parameter(self, i: int, name: str) -> Value:
        function = self.function
        if i == 0 and function.is_method and function.inside <= 0:
            kind = "class" if "classmethod" in function.decorators else "obj"
            return Value(sort=(kind, self.file, function.owner))
        if function.name == "__init__" and function.owner:
            given = self.link.built.get((self.file, function.owner), {}).get(i)
            if given is not None:
                return given
        by_name = value_of_name(name)
        if by_name.dep:
            return by_name
        return Value(0, frozenset((i,)), ("param", i)) if name[0] != "*" else PLAIN

    def run(self, summary: Summary) -> None:
        """Follows the function, and fills its summary."""
        if is_one_rank(self.function.decorators):
            name = next(d for d in self.function.decorators if is_one_rank([d]))
            self._branch(Cause(Value(RANK, zero=True), self.function.line, f"@{name}", self.path), self.function.body)
        else:
            self.block(self.function.body)
        self._close(self._exits)
        self._close_pending()
        for path, line, causes in self._stops:
            if causes and self.env.get(path, PLAIN).sort != AGREED:
                found_in_stop(self, path, line, causes[0])
        summary.effects = self.effects[:MOST_EFFECTS]
        summary.conditional = self.later[:MOST_EFFECTS]
        summary.unifies = frozenset(self.unified)
        returned = PLAIN
        for n, value in enumerate(self._returned):
            returned = value if n == 0 else either(returned, value)
        if len({is_none for is_none, _ in self._none_returned}) > 1 and any(
            by_rank for _, by_rank in self._none_returned
        ):
            returned = returned._replace(dep=returned.dep | MAYBE_NONE)
        if self.function.is_generator:
            returned = Value(
                UNEVEN if self._ends_unevenly else 0, sort=("share", "generator") if self._ends_unevenly else None
            )
        summary.returns = returned
        found_in_function(self, summary)

    def _branch(self, cause: Cause, body: Sequence[Stmt]) -> None:
        """A body that only some ranks come to."""
        mark = len(self.effects)
        self.conditions.append((cause, mark, self.loops))
        self.block(body)
        self.conditions.pop()
        self._part(cause, self._cut(mark), [])

    def _cut(self, mark: int) -> list[Effect]:
        cut = self.effects[mark:]
        del self.effects[mark:]
        return cut

    # What Calls asks for.

    def emit(self, effect: Effect) -> None:
        """A collective is made here."""
        if effect.group and len(effect.way) == 1:
            self.link.groups.setdefault((self.file, effect.group), set()).add((self.file, self.at))
        if self.needs or self._unsure:
            effect = effect._replace(needs=effect.needs | self.needs, is_sure=effect.is_sure and not self._unsure)
        self.effects.append(effect)
        for way_out in self._exits:
            way_out.rest.append(effect)

    def conditional_part(self, condition: Value, line: int, mark: int) -> None:
        """Effects from `mark` on are made only where a part of an expression is true."""
        self._part(Cause(condition, line, "the condition before it", self.path), self._cut(mark), [])

    def found_in_call(self, name: str, full: str, node: Call, args: list[Value]) -> None:
        """The rules that look at single calls."""
        found_in_call(self, name, full, node, args)

    # Statements.

    def block(self, body: Iterable[Stmt]) -> str:
        """Follows statements; how they end: return, break, continue, raise, exit, or empty where they go on."""
        needs = self.needs
        for s in body:
            end = _STATEMENTS[type(s)](self, s)
            if end:
                self.needs = needs
                return end
        self.needs = needs
        return ""

    def _do(self, s: Do) -> str:
        self.value(s.value)
        return "exit" if _ends_process(s.value) else ""

    def _set(self, s: Set) -> str:
        self._line = s.line
        value = self.value(s.value)
        if s.adds:
            value = either(self.value(s.targets[0]), value)
        for target in s.targets:
            self.assign(target, value, is_certain=not isinstance(s.value, Call | Ref))
        return ""

    def assign(self, target: Expr, value: Value, is_certain: bool = False) -> None:
        """Binds a name. What is bound where not every rank comes differs; `is_certain`: its name adds nothing."""
        if isinstance(target, Op) and target.op == "seq":
            parts = value.sort[1] if value.sort is not None and value.sort[0] == "tuple" else None
            for i, part in enumerate(target.parts):
                fits = parts is not None and len(parts) == len(target.parts)
                one = parts[i] if fits and parts is not None else Value(value.dep, value.params, _shared(value, i))
                self.assign(part, one, is_certain)
            return
        if isinstance(target, Op) and target.op == "[]" and isinstance(target.parts[0], Ref):
            base = target.parts[0].path
            if value.dep & DATA and base in self.env:
                self.env[base] = self.env[base]._replace(dep=self.env[base].dep | DATA)
            return
        if not isinstance(target, Ref):
            return
        for cause, *_ in self.conditions:
            if cause.value.dep & DIFFERS:
                zero = cause.value.zero if value.const is True else None
                value = value._replace(dep=value.dep | cause.value.dep & DIFFERS, group=cause.value.group, zero=zero)
        for dep in self._implied:
            value = value._replace(dep=value.dep | dep)
        last = target.path.rpartition(".")[2]
        if last in known.STOPS and "." in target.path and value.const is True and self._line:
            self._stops.append((target.path, self._line, [c for c, *_ in self.conditions if c.value.dep & RANK]))
        if not is_certain and not value.dep and value.const is UNKNOWN and (by_name := value_of_name(last)).dep:
            value = by_name
        self.env[target.path] = value
        head, _, name = target.path.partition(".")
        me = self.env.get(head)
        if name and "." not in name and me is not None and me.sort is not None and me.sort[0] == "obj":
            self.link.set_attribute(me.sort[1], me.sort[2], name, value)

    def _if(self, s: If) -> str:
        self.uniform = set()
        condition = as_condition(self.value(s.test))
        uniform = frozenset(self.uniform)
        if condition.const is not UNKNOWN:
            return self.block(s.body if condition.const else s.orelse)
        cause = Cause(condition, s.line, s.text, self.path, uniform)
        opposite = cause._replace(value=condition._replace(zero=None if condition.zero is None else not condition.zero))
        is_asked_before = any(c.uniform and c.uniform & paths_in(s.test) for c, *_ in self.conditions)
        is_single = bool({p.rpartition(".")[2] for p in paths_in(s.test)} & known.SINGLE) or is_never_a_rank(s.test)
        self._unsure += is_asked_before
        self._no_exits += is_single
        before, exits, mark, needs = self.env, self._exits, len(self.effects), self.needs
        ways = []
        for body, why, needed in zip((s.body, s.orelse), (cause, opposite), implied(self, s.test), strict=True):
            self.env, self._exits, self.needs = dict(before), list(exits), needs | needed
            self.conditions.append((why, len(self.effects), self.loops))
            end = self.block(body)
            self.conditions.pop()
            ways.append(Way(end, self.env, self._cut(mark), [e for e in self._exits if e not in exits], why, needed))
        self._unsure -= is_asked_before
        self._no_exits -= is_single
        self._exits, self.needs = exits + self._meet(*ways), needs
        here, there = ways
        if here.end or there.end:
            self.env = there.env if here.end else here.env
            if not (here.end and there.end):
                self.needs |= there.needed if here.end else here.needed
        else:
            self.env = _joined(here.env, there.env)
            if condition.dep & RANK:
                _mark_none(self.env, here, there, before)
        gone = [way.end in ("raise", "exit") for way in ways]
        if any(gone):
            self.effects += [] if all(gone) else there.made if gone[0] else here.made
        elif bool(here.end) == bool(there.end):
            self._part(cause, here.made, there.made)
        else:  # the way out compares what follows
            self.effects += here.made + there.made
        if here.end and there.end:
            return here.end if there.end in ("raise", "exit") else there.end
        return ""

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

    def _is_alone(self) -> bool:
        """Whether one rank alone comes here: what it decides is compared with the others where they part."""
        return any(c.value.dep & RANK and c.value.zero for c, *_ in self.conditions)

    def _part(self, cause: Cause, here: list[Effect], there: list[Effect]) -> None:
        """Two branches are compared; what is not made on both sides is pending or found."""
        differs = cause.value.dep & DIFFERS
        only_here, only_there = compared(here, there, cause)
        if not only_here and not only_there:
            self.effects += here if len(here) >= len(there) else there
            return
        if not differs or self._is_alone():
            for i in cause.value.params:
                for effect in (only_here or only_there)[:1]:
                    if effect.param < 0 and not effect.group and effect.is_sure:
                        test = "is None" if cause.value.sort == ("none test",) else ""
                        self.later.append(Conditional(i, test, finding_of(cause, effect, self.path), self.path))
            self.effects += here + [e for e in there if e not in here]
            return
        single = set(map(id, only_here + only_there))
        self.effects += [e for e in here + there if id(e) not in single]
        if only_here and only_there and cause.value.dep & RANK:
            self._report(finding_of(cause, only_here[0], self.path, other=only_there[0]), only_here[0])
            return
        for effects, zero in (
            (only_here, cause.value.zero),
            (only_there, None if cause.value.zero is None else not cause.value.zero),
        ):
            if effects:
                self._pending.append(Pending(cause._replace(value=cause.value._replace(zero=zero)), effects))

    def _report(self, found: Found, effect: Effect) -> None:
        inside = self.function.inside
        if inside > 0 and effect.way[-1].text.rpartition(".")[2] in self.link.project.function(self.file, inside).words:
            return  # a part of what the function around it does: the others answer there
        later = conditional_of(found, effect, self.path)
        if later is not None:
            self.later.append(later)
        else:
            self.link.report(self.path, found)

    def _close_pending(self) -> None:
        """Pairs of `if rank != 0: barrier()` and `if rank == 0: barrier()` are one barrier of all; the rest is found."""
        left = list(self._pending)
        while left:
            one = left.pop(0)
            keys = [e.key for e in one.effects]
            for other in left:
                opposite = one.cause.value.zero is None or other.cause.value.zero != one.cause.value.zero
                if [e.key for e in other.effects] == keys and opposite and one.cause.line != other.cause.line:
                    left.remove(other)
                    self.effects += one.effects
                    break
            else:
                for effect in sorted(one.effects, key=lambda e: e.param >= 0 or e.op == "destroy")[:1]:
                    self._report(finding_of(one.cause, effect, self.path), effect)

    def _leave(self, s: Leave) -> str:
        value = PLAIN if s.value is None else self.value(s.value)
        if s.kind == "yield":
            return ""
        if s.kind == "raise":
            return "raise"
        inside = self.loops if s.kind != "return" else 0
        differing = [
            (c, mark, n)
            for n, (c, mark, depth) in enumerate(self.conditions)
            if c.value.dep & DIFFERS and depth >= inside
        ]
        if s.kind == "return":
            self._none_returned.append((value.const is None, any(c.value.dep & RANK for c, *_ in differing)))
            for cause, *_ in differing:
                zero = (
                    cause.value.zero
                    if value.const is True
                    else None
                    if value.const is not False
                    else not (cause.value.zero or False)
                )
                value = value._replace(dep=value.dep | cause.value.dep & DIFFERS, zero=zero, const=UNKNOWN)
            self._returned.append(value)
            if differing and self.function.is_generator and any(c.value.dep & RANK for c, *_ in differing):
                self._ends_unevenly = True
        if differing and not self._unsure and not self._no_exits:
            alone = [d for d in differing if d[0].value.dep & RANK and d[0].value.zero]
            cause, mark, depth = (alone or differing[-1:])[0]
            self._exits.append(Exit(s.kind, cause, s.line, s.column, self.effects[mark:], depth))
        return s.kind

    def _close(self, exits: Iterable[Exit]) -> None:
        for way_out in exits:
            if way_out.kind == "except":
                close_handler(self, way_out.made, way_out.rest, way_out.cause.text)
                continue
            missed, extra = compared(way_out.rest, way_out.made, way_out.cause)
            missed, extra = worst_first(missed), worst_first(extra)
            if missed:
                found = finding_of(
                    way_out.cause, missed[0], self.path, exit_at=(way_out.kind, way_out.line, way_out.column)
                )
                self._report(found, missed[0])
            elif extra and way_out.kind == "return" and not way_out.rest:
                self._report(finding_of(way_out.cause, extra[0], self.path), extra[0])

    def _loop(self, s: Loop) -> str:
        over = self.value(s.over)
        mark, exits = len(self.effects), list(self._exits)
        is_for = s.target is not None
        if s.target is not None:
            self.assign(s.target, element(over), is_certain=True)
        before = dict(self.env)
        self.loops += 1
        self._implied.append(0 if is_for else over.dep & RANK)
        end = self.block(s.body)
        self._implied.pop()
        self.loops -= 1
        made = self.effects[mark:]
        mine = [e for e in self._exits if e not in exits]
        for way_out in mine:
            if way_out.kind in ("break", "return"):
                way_out.rest += [e for e in made if e not in way_out.rest]
        self._close([e for e in mine if e.kind in ("break", "continue")])
        self._exits = exits + [e for e in mine if e.kind not in ("break", "continue")]
        if not is_for and over.const is UNKNOWN:
            over = either(over, self.value(s.over))
        uneven = over.dep & UNEVEN if is_for else over.dep & DIFFERS
        self.env = _joined(before, self.env)
        if not is_for and over.const is True and len(s.body) == 1 and isinstance(s.body[0], Leave):
            found_in_endless_loop(self, s.body[0], s.line)
        if uneven and made and not self.uneven_is_fine:
            self._uneven(s, over, made, mark)
        self.block(s.orelse)
        return "return" if end in ("return", "exit", "raise") and not is_for and over.const is True else ""

    def _uneven(self, s: Loop, over: Value, made: list[Effect], mark: int) -> None:
        cause = Cause(over._replace(dep=over.dep | (RANK if over.dep & UNEVEN else 0)), s.line, s.text, self.path)
        alone = worst_first(compared(made, [], cause)[0])
        if alone:
            self._cut(mark)
            self._report(finding_of(cause, alone[0], self.path, is_loop=True), alone[0])
            self.effects += [e for e in made if e not in alone]

    def _with(self, s: With) -> str:
        no_sync = uneven = 0
        for item, target in zip(s.items, s.targets, strict=True):
            value = self.value(item)
            if target is not None:
                self.assign(target, value)
            name = _called_name(item)
            no_sync += name in ("no_sync", "accumulate", "no_backward_sync")
            uneven += name in ("Join", "join")
        self.no_sync += no_sync
        self.uneven_is_fine += uneven
        end = self.block(s.body)
        self.no_sync -= no_sync
        self.uneven_is_fine -= uneven
        return end

    def _try(self, s: Try) -> str:
        mark = len(self.effects)
        before = dict(self.env)
        end = self.block(s.body)
        made = self.effects[mark:]
        if not end:
            end = self.block(s.orelse)
        after = self.env
        ends = []
        for handler in s.handlers:
            self.env = _joined(before, after)
            at = len(self.effects)
            exits = list(self._exits)
            skips = any(e.hidden for e in made) and not is_feature_test(handler) and not is_broad_handler(handler)
            if skips:  # a batch that one rank cannot use
                cause = Cause(Value(DATA), handler.line, f"except {', '.join(handler.names)}", self.path)
                self.conditions.append((cause, at, self.loops))
            ends.append(self.block(handler.body))
            if skips:
                self.conditions.pop()
            self._exits = exits + [e for e in self._exits if e not in exits and (e.rest or skips)]
            is_fallback = (
                len(s.body) == 1
                and any(e.param < 0 for e in made)
                and not isinstance(s.body[0], If | Loop | With | Try)
            )
            own = self._cut(at)
            found_in_handler(self, handler, ends[-1], made, own, is_fallback)
            if own and not is_fallback and not is_feature_test(handler):
                text = f"except {', '.join(handler.names)}".rstrip()
                cause = Cause(PLAIN, handler.line, text, self.path)
                if ends[-1] in ("", "break", "continue"):
                    close_handler(self, own, made, text)
                else:
                    self._exits.append(Exit("except", cause, handler.line, 0, own, len(self.conditions), list(made)))
        self.env = after if not s.handlers else _joined(after, self.env)
        at = len(self.effects)
        final = self.block(s.final)
        if s.final and len(self.effects) > at:
            found_in_handler(self, None, "", made, self.effects[at:])
        return final or (end if all(ends) else "")


def worst_first(effects: list[Effect]) -> list[Effect]:
    """What is certain before what a parameter decides; leaving the group at the end is no collective of its own here."""
    return sorted((e for e in effects if e.op != "destroy"), key=lambda e: e.param >= 0)


def as_condition(v: Value) -> Value:
    """A value where it decides: whether there is an output at all is the same on all ranks."""
    return v._replace(dep=v.dep & ~(DATA | MAYBE)) if v.sort is not None and v.sort[0] in ("out", "of") else v


def _joined(a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
    out = dict(b)
    for name, value in a.items():
        other = b.get(name)
        out[name] = value if other is None or other is value else either(value, other)
    return out


def _mark_none(env: dict[str, Value], here: Way, there: Way, before: dict[str, Value]) -> None:
    """Names that are None on some ranks from here on; what was so and is made on the other ranks now, is so no more."""
    for name, value in env.items():
        a, b, old = here.env.get(name), there.env.get(name), before.get(name)
        if a is None or b is None or a is b:
            continue
        made, zero = (a, here.cause.value.zero) if b == old else (b, there.cause.value.zero)
        if (a.const is None) != (b.const is None):
            env[name] = value._replace(dep=value.dep | MAYBE_NONE | RANK, zero=zero)
        elif old is not None and old.dep & MAYBE_NONE and None not in (zero, old.zero) and zero != old.zero:
            env[name] = made._replace(dep=0, zero=None)


def is_never_a_rank(test: Expr) -> bool:
    """`local_rank == -1`: there is one process only."""
    match test:
        case Op(parts=[Ref() as of, Const(value=-1 | None)]):
            return known.rank_kind(of.path.rpartition(".")[2]) is not None
    return False


Needs = frozenset[tuple[int, bool | str]]


def implied(frame: Frame, test: Expr) -> tuple[Needs, Needs]:
    """What a condition says of parameters: where it is true, and where it is not."""
    nothing: Needs = frozenset()
    match test:
        case Ref():
            sort = frame.ref(test.path).sort
            if sort is not None and sort[0] == "param":
                return frozenset({(sort[1], True)}), frozenset({(sort[1], False)})
        case Op(op="not", parts=[inner]):
            return implied(frame, inner)[::-1]
        case Op(op="and" | "or"):
            both = [implied(frame, p) for p in test.parts]
            joined = frozenset[tuple[int, bool | str]]().union(*(b[test.op == "or"] for b in both))
            return (joined, nothing) if test.op == "and" else (nothing, joined)
        case Op(op="is" | "is not", parts=[Ref() as of, Const(value=None)]):
            sort = frame.ref(of.path).sort
            if sort is not None and sort[0] == "param":
                ways: tuple[Needs, Needs] = frozenset({(sort[1], "none")}), frozenset({(sort[1], "some")})
                return ways if test.op == "is" else ways[::-1]
    return nothing, nothing


def _shared(value: Value, i: int) -> tuple[object, ...] | None:
    """What a part of a returned tuple is: outputs of a module stay outputs; `initialize` gives the engine first."""
    if value.sort is None:
        return None
    if value.sort[0] in ("out", "of"):
        return value.sort
    return value.sort if value.sort == ("wrap", "engine") and i == 0 else None


def _called_name(e: Expr) -> str:
    if not isinstance(e, Call):
        return ""
    return (
        e.func.path.rpartition(".")[2] if isinstance(e.func, Ref) else e.func.name if isinstance(e.func, Attr) else ""
    )


def _ends_process(e: Expr) -> bool:
    return isinstance(e, Call) and isinstance(e.func, Ref) and e.func.path in known.ENDS_PROCESS


_STATEMENTS: dict[type, Callable[[Frame, Any], str]] = {
    Do: Frame._do, Set: Frame._set, If: Frame._if, Leave: Frame._leave, Loop: Frame._loop, With: Frame._with, Try: Frame._try,
}  # fmt: skip
