"""`try`: what a rank does that comes to a handler, while the others do not."""

from __future__ import annotations

from unhang.lint.branches import Branches, Exit
from unhang.lint.divergence import Cause
from unhang.lint.ir import Do, Handler, If, Leave, Loop, Stmt, Try, With
from unhang.lint.joining import joined_env
from unhang.lint.single import (
    after_failure,
    close_handler,
    fails_at,
    found_in_handler,
    hands_over,
    is_broad_handler,
    is_feature_test,
)
from unhang.lint.special import ends_process
from unhang.lint.values import DATA, FAILED, LOCAL, LOSS, PLAIN, RAISED, RANK, TOLD, Effect, Raised, Value

_ENDS_UNEVENLY: Raised = ("StopIteration", RANK, frozenset())
_NO_FILE = {"FileNotFoundError", "OSError", "IOError", "Exception", "EOFError"}
_ALL = {"Exception", "BaseException"}


def is_end(s: Stmt) -> bool:
    """Whether a statement ends the rank."""
    return (isinstance(s, Leave) and s.kind == "raise") or (isinstance(s, Do) and ends_process(s.value))


class Handlers(Branches):
    """The part of a frame that follows `try`. `raises`: exceptions that it raises by what differs, each with how it differs."""

    at: int
    _round: int
    is_leaving: int
    _reads_own: bool
    caught: dict[
        str, int
    ]  # what the last handler catches of the exceptions that are raised in sight, and how they differ

    def is_ordered(self) -> bool:
        """Whether a round of the `while` loop around it began with a broadcast: all ranks do what it says, and fail alike."""
        return 0 <= self._round < len(self.effects) and self.effects[self._round].op == "broadcast"

    def _fails_alone(self, s: Try, handler: Handler, made: list[Effect], is_fallback: bool, runs: bool) -> int:
        """Whether one rank alone may come to a handler: LOSS, by its batch, or FAILED."""
        if is_feature_test(handler):
            return 0
        if not is_broad_handler(handler):  # a batch that one rank cannot use
            return LOSS * (runs or any(e.hidden and e.op in ("forward", "backward", "step") for e in made))
        can_fail = not is_fallback and handler.names != ["AssertionError"] and self.at and fails_at(s.body)
        return FAILED if can_fail else 0

    def _handler(
        self, s: Try, handler: Handler, made: list[Effect], is_fallback: bool, raised: set[Raised], runs: bool
    ) -> str:
        """What a rank does that comes to a handler, while the others do not."""
        at, exits, text = len(self.effects), list(self.ways_out), f"except {', '.join(handler.names)}".rstrip()
        is_known, is_broad = is_feature_test(handler), is_broad_handler(handler)
        dep = self._fails_alone(s, handler, made, is_fallback, runs)
        by_batch = {n for n, by, _ in raised if by & DATA and not by & ~DATA}
        is_of_batch = not by_batch.isdisjoint(handler.names) and not is_broad
        if is_of_batch:
            dep = LOSS  # as if it were asked here
        elif any(
            name in handler.names or not _ALL.isdisjoint(handler.names) or not handler.names
            for name, dep, _ in raised
            if dep & ~TOLD
        ):
            dep = FAILED | RAISED
        if self._reads_own and (not handler.names or not _NO_FILE.isdisjoint(handler.names)):
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
        self.caught = {n: n_dep for n, n_dep, _ in raised if n in handler.names}
        if found_in_handler(self, handler, end, made, own, is_fallback or is_again):
            mine = []
        for way_out in mine:
            if (way_out.cause.value.dep & FAILED or is_of_batch) and way_out.depth == len(self.conditions):
                way_out.rest[:0] = after_failure(s.body, made)
                way_out.is_replaced = hands_over(self, handler.body)
        self.ways_out = exits + mine
        if own and not is_fallback and not is_known:
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
        is_fallback = (
            len(s.body) == 1 and any(e.param < 0 for e in made) and not isinstance(s.body[0], If | Loop | With | Try)
        )
        for handler in s.handlers:
            self.env = joined_env(before, after)
            self._reads_own = self.own_reads > own_reads
            ends.append(self._handler(s, handler, made, is_fallback, raised, runs))
            self.alone_before = alone
        self.env = after if not s.handlers else joined_env(after, self.env)
        at = len(self.effects)
        final = self.block(s.final)
        if s.final and len(self.effects) > at:
            found_in_handler(self, None, "", made, self.effects[at:])
        return final or (end if all(ends) else "")
