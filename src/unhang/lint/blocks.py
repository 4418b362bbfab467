"""Statements around others: `try`, loops and context managers. What a rank does that comes to a handler, or goes round more often than the others."""

from __future__ import annotations

from unhang.lint import sorts
from unhang.lint.branches import Branches
from unhang.lint.divergence import Cause, Exit, compared, finding_of, told, worst_first
from unhang.lint.doubts import as_orders
from unhang.lint.generators import setting_to_go_on
from unhang.lint.graphs import note_use
from unhang.lint.ir import (
    Call,
    Const,
    Do,
    Expr,
    Handler,
    If,
    Leave,
    Loop,
    Ref,
    Set,
    Stmt,
    Try,
    With,
    nodes_in,
    statements_in,
)
from unhang.lint.orders import found_in_order
from unhang.lint.single import (
    after_failure,
    close_handler,
    fails_at,
    found_in_endless_loop,
    found_in_handler,
    found_in_save,
    hands_over,
    is_broad_handler,
    is_feature_test,
)
from unhang.lint.special import called_name, ends_process, has_own_order, paths_in, sample
from unhang.lint.unnamed import found_in_turns
from unhang.lint.values import (
    DATA,
    DIFFERS,
    FAILED,
    LOCAL,
    LOSS,
    NO_PARAMS,
    NO_ROOM,
    OWN_BATCH,
    PLAIN,
    RAISED,
    RANK,
    TOLD,
    UNEVEN,
    UNKNOWN,
    Effect,
    Raised,
    Value,
    either,
    joined_env,
)
from unhang.lint.wellknown import items_of

_ENDS_UNEVENLY: Raised = ("StopIteration", RANK, frozenset())
_NO_FILE = {"FileNotFoundError", "OSError", "IOError", "Exception", "EOFError"}
_ALL = {"Exception", "BaseException"}


def is_end(s: Stmt) -> bool:
    """Whether a statement ends the rank."""
    return (isinstance(s, Leave) and s.kind == "raise") or (isinstance(s, Do) and ends_process(s.value))


def gone_through(e: Expr) -> str:
    """The name of what a loop goes through: `losses` in `losses.values()` and `enumerate(losses)`; empty: it has none."""
    match e:
        case Ref(path=path):
            return path
        case Call(func=Ref(path=path), args=[]) if path.endswith((".values", ".items")):
            return path.rpartition(".")[0]
        case Call(func=Ref(path="enumerate" | "sorted" | "list" | "reversed"), args=[of, *_]):
            return gone_through(of)
    return ""


class Blocks(Branches):
    """The part of a frame that follows `try`, loops and context managers."""

    def _fails_alone(self, s: Try, handler: Handler, made: list[Effect], is_fallback: bool, runs: bool) -> int:
        """Whether one rank alone may come to a handler: LOSS, by its batch, or FAILED."""
        if is_feature_test(handler):
            return 0
        if not is_broad_handler(handler):  # a batch that one rank cannot use
            return LOSS * (runs or any(e.hidden and e.op in ("forward", "backward", "step") for e in made))
        can_fail = not is_fallback and handler.names != ["AssertionError"] and self.at and fails_at(s.body)
        return FAILED if can_fail else 0

    def _handler(
        self, s: Try, handler: Handler, made: list[Effect], is_fallback: bool, raised: set[Raised], runs: bool,
        own_reads: int,
    ) -> str:  # fmt: skip
        """What a rank does that comes to a handler, while the others do not."""
        at, exits, text = len(self.effects), list(self.ways_out), f"except {', '.join(handler.names)}".rstrip()
        is_known, is_broad = is_feature_test(handler), is_broad_handler(handler)
        dep = self._fails_alone(s, handler, made, is_fallback, runs)
        by_batch = {n for n, by, _ in raised if by & DATA and not by & ~DATA}
        is_of_batch = not by_batch.isdisjoint(handler.names) and not is_broad
        if is_of_batch:
            dep = LOSS  # as if it were asked here
        else:
            caught = {r for r in raised if r[1] & ~TOLD and (not handler.names or {r[0], *_ALL} & {*handler.names})}
            dep = (LOCAL if caught == {NO_ROOM} else FAILED | RAISED) if caught else dep
        if self.own_reads > own_reads and (not handler.names or not _NO_FILE.isdisjoint(handler.names)):
            dep = LOCAL  # a file that others do not look for is not there, perhaps
        last = handler.body[-1] if handler.body else None
        if _ENDS_UNEVENLY in raised and "StopIteration" in handler.names and isinstance(last, Leave):
            dep = RANK  # a share has one item less
        if dep:
            self.conditions.append((Cause(Value(dep), handler.line, text, self.path), at, self.loops))
        is_leaving = last is not None and is_end(last)
        self.is_leaving += is_leaving
        end = self.block(handler.body)
        self.is_leaving -= is_leaving
        if dep:
            self.conditions.pop()
        mine = [e for e in self.ways_out if e not in exits and (e.rest or dep)]
        own = self._cut(at)
        is_again = bool(own) and {e.key for e in made} <= {e.key for e in own}
        self.caught = {}
        for name, by, _ in raised:
            if name in handler.names:
                self.caught[name] = self.caught.get(name, 0) | by
        if found_in_handler(self, handler, end, made, own, is_fallback or is_again):
            mine = []
        for way_out in mine:
            if (way_out.cause.value.dep & (FAILED | LOCAL) or is_of_batch) and way_out.depth == len(self.conditions):
                way_out.rest[:0] = after_failure(s.body, made)
                way_out.is_replaced = hands_over(self, handler.body)
        self.ways_out = exits + mine
        is_told = own and (is_leaving or not is_fallback) and found_in_save(self, handler, s.body, made, own)
        if own and not is_fallback and not is_known and not is_told:
            cause = Cause(PLAIN, handler.line, text, self.path)
            if end in ("", "break", "continue"):
                close_handler(self, own, made, text)
            else:
                self.ways_out.append(Exit("except", cause, handler.line, 0, own, len(self.conditions), rest=list(made)))
        return end

    def _try(self, s: Try) -> str:
        mark, forwards, own_reads = len(self.effects), self.forwards, self.own_reads
        before = dict(self.env)
        before_it, self.raises = self.raises, set()
        alone, self.alone_before = self.alone_before, ""
        end = self.block(s.body)
        self.alone_before = alone if s.handlers else alone or self.alone_before
        raised, self.raises = self.raises, before_it | (set() if s.handlers else self.raises)
        made, runs = self.effects[mark:], self.forwards > forwards
        if not end:
            end = self.block(s.orelse)
        after = self.env
        ends = []
        is_one_line = len(s.body) == 1 and not isinstance(s.body[0], If | Loop | With | Try)
        is_fallback = is_one_line and any(e.param < 0 for e in made)
        for handler in s.handlers:
            self.env = joined_env(before, after)
            ends.append(self._handler(s, handler, made, is_fallback, raised, runs, own_reads))
            self.alone_before = alone
        self.env = after if not s.handlers else joined_env(after, self.env)
        at = len(self.effects)
        final = self.block(s.final)
        if s.final and len(self.effects) > at:
            found_in_handler(self, None, "", made, self.effects[at:])
        return final or (end if all(ends) else "")

    def loop(self, s: Loop) -> str:
        """Follows a loop, and says how it ends."""
        begin, over = len(self.effects), self.value(s.over)
        mark, exits = len(self.effects), list(self.ways_out)
        is_for = s.target is not None
        if s.target is not None:
            note_use(self, [s.over])
            self.assign(s.target, sample(over), is_certain=True)
        before = dict(self.env)
        self._forget_none(s.body)
        if over.kind == "obj" and is_for:
            over = over._replace(dep=over.dep | items_of(self, over))
            self.go_through(over)
        endless = not is_for and over.const is True
        is_uneven = bool(over.dep & UNEVEN)
        self._note_setting(s, over)
        self._endless += endless
        self._uneven_loops += is_uneven
        of_parameter = over.sort[1:2] if is_for and over.kind == "param" else ()
        fills = is_for and not self._uneven_loops and called_name(s.over) == "range"
        self._fills += fills
        together, self._leaves_together = self._leaves_together, False
        self._over_parameters += of_parameter
        self.loops += 1
        before_it, self._round = self._round, -1 if is_for else len(self.effects)
        end = self._rounds_of(s, over)
        self.loops -= 1
        self._agree_on_all(s)
        self._round = before_it
        self._fills -= fills
        together, self._leaves_together = self._leaves_together, together
        del self._over_parameters[len(self._over_parameters) - len(of_parameter) :]
        self._endless, self._uneven_loops = self._endless - endless, self._uneven_loops - is_uneven
        made = self.effects[mark:] = self.effects[mark:] if is_for else as_orders(self.effects[mark:])
        mine = [e for e in self.ways_out if e not in exits]
        for way_out in mine:
            if way_out.kind in ("break", "return", "raise") and not way_out.is_replaced:
                way_out.rest += [e for e in made if e not in way_out.rest]
        self._close([e for e in mine if e.kind in ("break", "continue")])
        self.ways_out = exits + [e for e in mine if e.kind not in ("break", "continue")]
        over = either(over, self.value(s.over)) if not is_for and over.const is UNKNOWN else over
        is_ragged = over.kind == "ragged"
        over = over._replace(dep=over.dep | OWN_BATCH) if is_for and is_ragged else over
        uneven = is_ragged or over.dep & UNEVEN if is_for else over.dep & (DIFFERS | UNEVEN)
        self.env = joined_env(before, self.env)
        if not is_for and over.const is True and len(s.body) == 1 and isinstance(s.body[0], Loop):
            found_in_endless_loop(self, s.body[0], s.line)
        if is_for:
            found_in_order(self, s, over, made)
        else:
            self._wait_for_others(self.effects[begin:])
        self.counts |= over.params if is_for and made and over.kind == "sized" else NO_PARAMS
        over = over._replace(dep=LOSS) if is_for and over.sort == sorts.FILLED else over
        uneven = uneven or (is_for and over.dep & DATA and over.sort in (sorts.FILLED, ("share", "range")))
        together &= over.sort != sorts.ROUNDS  # who has tried often enough leaves alone
        if uneven and made and not self.uneven_is_fine and not (is_for and (together or self._begins_anew(s))):
            self._uneven(s, over, made, mark)
        self.effects[mark:] = [e._replace(is_often=True) for e in self.effects[mark:]]
        self.block(s.orelse)
        return "return" if end in ("return", "exit", "raise") and not is_for and over.const is True else ""

    def _rounds_of(self, s: Loop, over: Value) -> str:
        """Follows the body of a loop, with what is known in it alone."""
        is_for = s.target is not None
        self._implied.append(0 if is_for else over.dep & RANK)
        self._limits.append(frozenset() if is_for else frozenset(paths_in(s.over)))
        untils = [over.sort] if is_for and over.kind == "until" else []
        self.untils += untils
        orders = [over.kind] if is_for and has_own_order(over) else []
        self.orders += orders
        is_own = is_for and over.sort == ("many", sorts.BATCH)
        self.loops_over_own += is_own
        self.filtered += over.sort == sorts.FILTERED
        self.evens += over.sort == sorts.OWN_EVEN
        self.rounds += [] if is_for else [over]
        ends = self._ends_unevenly, self._ends_as
        end = self.block(s.body)
        self.loops_over_own -= is_own
        self.filtered -= over.sort == sorts.FILTERED
        self.evens -= over.sort == sorts.OWN_EVEN
        del self.untils[len(self.untils) - len(untils) :]
        del self.orders[len(self.orders) - len(orders) :]
        del self.rounds[len(self.rounds) - (not is_for) :]
        self._limits.pop()
        self._implied.pop()
        if is_for and self.function.is_generator and self._begins_anew(s):  # until as many are given as shall be
            self._ends_unevenly, self._ends_as = ends
        return end

    def _note_setting(self, s: Loop, over: Value) -> None:
        """`while self.repeat: yield from items`, of a generator."""
        if self.function.is_generator and not self.conditions and not self.loops and not over.dep:
            self._goes_on = self._goes_on or setting_to_go_on(s)

    def _agree_on_all(self, s: Loop) -> None:
        """`for loss in losses.values(): all_reduce(loss)`: all of them are agreed on after it."""
        agreed = {n for n in paths_in(s.target) if self.env.get(n, PLAIN).sort == sorts.AGREED} if s.target else set()
        if not agreed:
            return
        bound = {
            t for n in statements_in(s.body) if isinstance(n, Set) for target in n.targets for t in paths_in(target)
        }
        if agreed - bound:
            path = gone_through(s.over)
            if path and self.ref(path).sort != sorts.AGREED:
                self.env[path] = Value(sort=sorts.AGREED)

    def _forget_none(self, body: list[Stmt]) -> None:
        """What is None before a loop, and is bound in it, is None in its first round alone."""
        names = {name for name, v in self.env.items() if v.const is None}
        for n in statements_in(body) if names else ():
            for target in n.targets if isinstance(n, Set) else ():
                if isinstance(target, Ref) and target.path in names:
                    self.env[target.path] = PLAIN

    def with_(self, s: With) -> str:
        """Follows what is done under context managers."""
        no_sync = uneven = 0
        for item, target in zip(s.items, s.targets, strict=True):
            value = self.value(item)
            if target is not None:
                self.assign(target, value)
            name = called_name(item)
            is_split = name == "split_between_processes" and isinstance(item, Call)
            if is_split and target is not None and item.given("apply_padding", 1) != Const(True):  # type: ignore[union-attr]
                self.assign(target, Value(UNEVEN, sort=("share", "split")), is_certain=True)
            if name == "state_dict_type" and isinstance(item, Call) and item.args and isinstance(item.args[0], Ref):
                self.wrap_in_place(item.args[0].path, Value(sort=("wrap", "fsdp")))  # who asks so has a sharded one
            no_sync += name in ("no_sync", "accumulate", "no_backward_sync")
            uneven += name in ("Join", "join")
        self.no_sync += no_sync
        self.uneven_is_fine += uneven
        mark = len(self.effects)
        end = self.block(s.body)
        found_in_turns(self, s, mark)
        self.no_sync -= no_sync
        self.uneven_is_fine -= uneven
        return end

    def _begins_anew(self, s: Loop) -> bool:
        """Whether a loop around it goes on until as many rounds were made in this one: `while step < steps: for batch in loader: step += 1`."""
        counted = {
            t.path for n in nodes_in(s.body) if isinstance(n, Set) and n.adds for t in n.targets if isinstance(t, Ref)
        }
        return any(not counted.isdisjoint(limit) for limit in self._limits)

    def uneven_part(self, over: Value, source: Expr, mark: int) -> None:
        """Effects from `mark` on are made in a comprehension, for each of some items, of which each rank has another number."""
        if not self.uneven_is_fine:
            text = min(paths_in(source), default="the comprehension", key=len)
            self._uneven(Loop(None, source, [], [], self.line_now, text), over, self.effects[mark:], mark)

    def _wait_for_others(self, made: list[Effect]) -> None:
        """After a loop in which some ranks are done sooner, they take part in a `while` loop that begins with the same collective, until all are."""
        if not self.loops and made:
            self._uneven_found = [one for one in self._uneven_found if one[1].key != made[0].key]

    def _uneven(self, s: Loop, over: Value, made: list[Effect], mark: int) -> None:
        cause = Cause(over._replace(dep=over.dep | (RANK if over.dep & UNEVEN else 0)), s.line, s.text, self.path)
        alone = worst_first(compared(made, [], cause)[0])
        if alone:
            self._cut(mark)
            alone.sort(key=lambda e: e.way[0].text == "__iter__()")  # what the loop makes says more
            for one in told(alone):
                found = finding_of(cause, one, self.path, is_loop=True)
                if self.loops or s.target is None:
                    self._report(found, one, True)
                else:
                    self._uneven_found.append((found, one))
            self.effects += [e for e in made if e not in alone]
