"""Loops: how often each rank goes round, and what is made in a round."""

from __future__ import annotations

from unhang.lint.branches import worst_first
from unhang.lint.divergence import Cause, compared, finding_of
from unhang.lint.doubts import as_orders
from unhang.lint.handlers import Handlers
from unhang.lint.ir import Call, Const, Expr, Loop, Ref, Set, With, nodes_in
from unhang.lint.joining import joined_env
from unhang.lint.single import found_in_endless_loop, found_in_order
from unhang.lint.special import called_name, paths_in, sample
from unhang.lint.values import DATA, DIFFERS, FILLED, LOSS, OWN_BATCH, RANK, UNEVEN, UNKNOWN, Effect, Value, either
from unhang.lint.wellknown import items_of


class Loops(Handlers):
    """The part of a frame that follows loops."""

    uneven_is_fine: int
    line_now: int
    _endless: int
    _uneven_loops: int
    _fills: int
    _leaves_together: bool
    _over_parameters: list[int]
    _implied: list[int]
    _limits: list[frozenset[str]]

    def loop(self, s: Loop) -> str:
        """Follows a loop, and says how it ends."""
        over = self.value(s.over)
        mark, exits = len(self.effects), list(self.ways_out)
        is_for = s.target is not None
        if s.target is not None:
            self.assign(s.target, sample(over), is_certain=True)
        before = dict(self.env)
        if over.sort is not None and over.sort[0] == "obj" and is_for:
            over = over._replace(dep=over.dep | items_of(self, over))
            self.go_through(over)
        endless = not is_for and over.const is True
        is_uneven = bool(over.dep & UNEVEN)
        self._endless += endless
        self._uneven_loops += is_uneven
        of_parameter = over.sort[1:2] if is_for and over.sort is not None and over.sort[0] == "param" else ()
        fills = is_for and not self._uneven_loops and called_name(s.over) == "range"
        self._fills += fills
        together, self._leaves_together = self._leaves_together, False
        self._over_parameters += of_parameter
        self.loops += 1
        before_it, self._round = self._round, -1 if is_for else len(self.effects)
        self._implied.append(0 if is_for else over.dep & RANK)
        self._limits.append(frozenset() if is_for else frozenset(paths_in(s.over)))
        end = self.block(s.body)
        self._limits.pop()
        self._implied.pop()
        self.loops -= 1
        self._round = before_it
        self._fills -= fills
        together, self._leaves_together = self._leaves_together, together
        del self._over_parameters[len(self._over_parameters) - len(of_parameter) :]
        self._endless -= endless
        self._uneven_loops -= is_uneven
        made = self.effects[mark:] = self.effects[mark:] if is_for else as_orders(self.effects[mark:])
        mine = [e for e in self.ways_out if e not in exits]
        for way_out in mine:
            if way_out.kind in ("break", "return", "raise") and not way_out.is_replaced:
                way_out.rest += [e for e in made if e not in way_out.rest]
        self._close([e for e in mine if e.kind in ("break", "continue")])
        self.ways_out = exits + [e for e in mine if e.kind not in ("break", "continue")]
        if not is_for and over.const is UNKNOWN:
            over = either(over, self.value(s.over))
        is_ragged = over.sort is not None and over.sort[0] == "ragged"
        over = over._replace(dep=over.dep | OWN_BATCH) if is_for and is_ragged else over
        uneven = is_ragged or over.dep & UNEVEN if is_for else over.dep & (DIFFERS | UNEVEN)
        self.env = joined_env(before, self.env)
        if not is_for and over.const is True and len(s.body) == 1 and isinstance(s.body[0], Loop):
            found_in_endless_loop(self, s.body[0], s.line)
        if is_for:
            found_in_order(self, s, over, made)
        if is_for and over.sort == FILLED:
            over = over._replace(dep=LOSS)
        uneven = uneven or (is_for and over.dep & DATA and over.sort in (FILLED, ("share", "range")))
        if uneven and made and not self.uneven_is_fine and not (is_for and (together or self._begins_anew(s))):
            self._uneven(s, over, made, mark)
        self.effects[mark:] = [e._replace(is_often=True) for e in self.effects[mark:]]
        self.block(s.orelse)
        return "return" if end in ("return", "exit", "raise") and not is_for and over.const is True else ""

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
        end = self.block(s.body)
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

    def _uneven(self, s: Loop, over: Value, made: list[Effect], mark: int) -> None:
        cause = Cause(over._replace(dep=over.dep | (RANK if over.dep & UNEVEN else 0)), s.line, s.text, self.path)
        alone = worst_first(compared(made, [], cause)[0])
        if alone:
            self._cut(mark)
            self._report(finding_of(cause, alone[0], self.path, is_loop=True), alone[0], True)
            self.effects += [e for e in made if e not in alone]
