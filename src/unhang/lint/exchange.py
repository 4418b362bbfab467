"""Neighbours that all send before they receive: a send waits for its partner, and all partners are in a send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.lint import known
from unhang.lint.ir import (
    Call,
    Const,
    Expr,
    Fn,
    Found,
    Function,
    If,
    Leave,
    Loop,
    Node,
    Op,
    Ref,
    Set,
    Stmt,
    Try,
    With,
    calls_in,
    nodes_in,
)
from unhang.lint.special import name_of, paths_in

if TYPE_CHECKING:
    from unhang.lint.link import Link
    from unhang.lint.project import Project

_MODULES = ("torch.distributed.", "torch.distributed.distributed_c10d.")
_SENDS, _TAKES = {"send", "send_object_list"}, {"recv", "recv_object_list"}
_ALL_RANKS = {"world_size", "get_world_size", "world", "num_stages", "stages", "num_ranks", "nprocs"}
_DEEPEST, _MOST_STEPS, _MOST_EVENTS, _MOST_CALLERS, _MOST_PARTNERS, _LINES = 4, 12, 40, 30, 8, 1_000_000

# Whom a rank sends to, seen from itself: a rank `after` or `before` it, in a `ring` or not; `own`: itself; `other`: whoever has it for a partner as well.
Peer = tuple[str, bool] | tuple[str, int] | None
_OWN: Peer = ("own", False)
Guard = tuple[int, bool, str]  # a condition: its line, which branch, and what it asks


class Event(NamedTuple):
    """A send, a receive, or a `swap`: a send and then a receive of the same partner. `at`: line and column of the call in the function."""

    op: str
    peer: Peer
    guards: tuple[Guard, ...]
    at: tuple[int, int]
    is_new: bool = True  # it stands here itself, or the partner is named here


class Exchanges:
    """All sends and receives of a project, in the order in which its functions make them."""

    def __init__(self, link: Link) -> None:
        self._link, self._project = link, link.project
        self._events: dict[tuple[int, int], list[Event]] = {}

    def judge(self) -> None:
        """Finds the functions in which all ranks send first."""
        functions = self._project.functions
        direct = [k for word in _SENDS | _TAKES for k, _ in self._project.callers_by_name(word)]
        todo = {
            k for k in direct if any(self._is_call_of(k[0], n, _SENDS | _TAKES) for n in nodes_in(functions[k].body))
        }
        fresh = todo
        for _ in range(_DEEPEST):
            callers = [self._project.callers_by_name(name) for name in {functions[k].name for k in fresh}]
            fresh = {k for rows in callers if len(rows) <= _MOST_CALLERS for k, _ in rows} - todo
            todo |= fresh
        for file, at in sorted(todo):
            for event in self._all_send(self._of(file, at)):
                line, column = event.at
                found = Found("LNT116", line, column + 1, {"function": functions[file, at].name})
                self._link.report(self._project.files[file].path, found)

    def _is_call_of(self, file: int, node: Node, names: set[str]) -> bool:
        if not isinstance(node, Call) or not isinstance(node.func, Ref) or name_of(node) not in names:
            return False
        return self._project.resolved(file, node.func.path).removesuffix(name_of(node)) in _MODULES

    def _all_send(self, events: Sequence[Event]) -> Iterator[Event]:
        """The sends of a function that wait for each other."""
        for send, take in _pairs(events):
            is_ring = {send.peer, take.peer} == {("after", True), ("before", True)}
            is_new = send.at != take.at or send.is_new
            is_of_rank = any(g[2] in ("rank", "parity") for g in (*send.guards, *take.guards))
            if is_new and not is_of_rank and (is_ring or send.peer == take.peer == ("other", True)):
                yield send
                return
        swaps = [e for e in events if e.op == "swap" and not any(g[2] == "parity" for g in e.guards)]
        sides = {e.peer[0] for e in swaps if e.peer is not None}
        if {"after", "before"} <= sides and (swaps[0].is_new or len({e.at for e in swaps}) > 1):
            yield swaps[0]

    # What a function does.

    def _of(self, file: int, at: int) -> list[Event]:
        key = file, at
        if key not in self._events:
            self._events[key] = []
            function = self._project.function(file, at)
            functions = self._project.files[file].functions
            methods = [f for f in functions if f.owner == function.owner] if function.owner else []
            made, _ = self._walk(_Place(file, function, methods), function.body, ())
            swaps = [
                s._replace(op="swap") for s, t in _pairs(made)
                if s.peer == t.peer and s.peer is not None and s.peer[0] in ("param", "after", "before") and s.at != t.at
            ]  # fmt: skip
            self._events[key] = (made + swaps)[:_MOST_EVENTS]
        return self._events[key]

    def _walk(self, of: _Place, body: Iterable[Stmt], guards: tuple[Guard, ...]) -> tuple[list[Event], bool]:
        """What statements do, and whether they leave the function or the round."""
        made: list[Event] = []
        for s in body:
            match s:
                case If(test=test, body=here, orelse=there, line=line):
                    made += self._calls(of, test, guards)
                    asks = _asks(of, test)
                    yes, no = (line, True, asks), (line, False, asks)
                    first, is_left = self._walk(of, here, (*guards, yes))
                    second, is_other_left = self._walk(of, there, (*guards, no))
                    made += first + second
                    if is_left and is_other_left:
                        return made, True
                    guards = (*guards, no) if is_left else (*guards, yes) if is_other_left else guards
                case Loop():
                    for one in _rounds(self._project, of, s):
                        made += self._walk(one, s.body, guards)[0]
                case With():
                    made += self._walk(of, s.body, guards)[0]
                case Try():
                    made += self._walk(of, [*s.body, *s.orelse, *s.final], guards)[0]
                case Leave() if s.kind != "yield":
                    return made + (self._calls(of, s.value, guards) if s.value is not None else []), True
                case Set() | Leave() if s.value is not None:
                    made += self._calls(of, s.value, guards)
                case _:
                    made += self._calls(of, s, guards)
        return made, False

    def _calls(self, of: _Place, part: Node, guards: tuple[Guard, ...]) -> list[Event]:
        made = []
        for node in nodes_in(part):
            if not isinstance(node, Call):
                continue
            at = node.line, node.column
            is_send = self._is_call_of(of.file, node, _SENDS)
            if is_send or self._is_call_of(of.file, node, _TAKES):
                given = node.given("dst" if is_send else "src", 1)
                made.append(Event("send" if is_send else "recv", _peer(of, given), guards, at))
            elif (target := self._called(of, node)) is not None:
                made += self._taken_over(of, node, target, guards)
        return made

    def _taken_over(self, of: _Place, node: Call, target: tuple[int, int], guards: tuple[Guard, ...]) -> list[Event]:
        """What a call of a function of the project does here."""
        function, out = self._project.function(*target), []
        for e in self._of(*target):
            peer, is_new = e.peer, False
            if peer is not None and peer[0] == "param" and isinstance(peer[1], int):
                given = node.given(function.parameters[peer[1]], peer[1] - function.is_method)
                peer, is_new = _peer(of, given), True
            inner = tuple((-node.line * _LINES - line, side, asks) for line, side, asks in e.guards)
            out.append(Event(e.op, peer, (*guards, *inner), (node.line, node.column), is_new))
        return out

    def _called(self, of: _Place, node: Call) -> tuple[int, int] | None:
        """The function that is called, as far as names tell it."""
        if not isinstance(node.func, Ref):
            return None
        owner, _, name = node.func.path.rpartition(".")
        if owner == "self":
            return self._project.method(of.file, of.function.owner, name)
        symbol = self._project.symbol_of(of.file, node.func.path)
        if symbol is not None:
            return (symbol.file, symbol.at) if symbol.kind == "fn" else None
        methods = self._project.methods_called(name) if owner else []
        return methods[0][1:] if len(methods) == 1 else None


class _Place(NamedTuple):
    """A function, and where it is."""

    file: int
    function: Function
    methods: list[Function]  # of its class
    named: tuple[tuple[str, _Place, Expr], ...] = ()  # what a name is in this round of a loop, and where that stands


def _rounds(project: Project, of: _Place, s: Loop) -> list[_Place]:
    """Where the body of a loop is followed: once for each neighbour that the loop goes through, else once."""
    target, over = s.target, s.over
    match target, over:
        case Op(op="seq", parts=[_, Ref() as target]), Call(func=Ref(path="enumerate"), args=[over, *_]):
            pass
        case Op(op="seq", parts=[_, Ref() as target]), Call(func=Ref(path=path), args=[]) if path.endswith(".items"):
            over = Ref(path[:-6])
    several = _each(project, of, over) if isinstance(target, Ref) else []
    if not isinstance(target, Ref) or not 1 < len(several) <= _MOST_PARTNERS:
        return [of]
    return [of._replace(named=(*of.named, (target.path, *one))) for one in several]


def _each(project: Project, of: _Place, e: Expr, steps: int = 4) -> list[tuple[_Place, Expr]]:
    """What is in a list that is written out, picked from such a one, put together, or given by a function; empty: that is not clear."""
    match e:
        case Op(op="seq", parts=[_, *_] as parts):
            return [(of, p) for p in parts]
        case Op(op="dict", parts=[_, *_] as parts):
            return [(of, p) for p in parts[len(parts) // 2 :]]
        case Op(op="comp", parts=[Ref() as made, Op(parts=[target, over, *_])]) if made == target and steps:
            return _each(project, of, over, steps - 1)
        case Ref(path=path) if steps and (bound := _bound(of, path)) is not None:
            if bound[1] == Op("seq", []):
                calls = calls_in(bound[0].function.body)
                return [(bound[0], n.args[0]) for n in calls if n.func == Ref(f"{path}.append") and n.args][::-1]
            return _each(project, *bound, steps - 1)
        case Call(func=Ref(path=path), args=[]) if steps and path.startswith("self.") and of.function.owner:
            at = project.method(of.file, of.function.owner, path[5:])
            function = project.function(*at) if at is not None and at[0] == of.file else None
            ends = [n for n in nodes_in(function.body) if isinstance(n, Leave)] if function is not None else []
            if function is not None and len(ends) == 1 and ends[0].kind == "return" and ends[0].value is not None:
                return _each(project, of._replace(function=function, named=()), ends[0].value, steps - 1)
    return []


def _pairs(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Each send with the receive after it, where no other branch does it the other way round."""
    plain = [e for e in events if e.op != "swap"]
    for n, send in enumerate(plain):
        take = next((e for e in plain[n + 1 :] if not _excludes(send, e)), None)
        if send.op == "send" and take is not None and take.op == "recv" and not _is_turned_round(plain, send):
            yield send, take


def _is_turned_round(events: Sequence[Event], send: Event) -> bool:
    """Whether ranks that do not come to a send receive before they send."""
    others = [e for e in events if _excludes(e, send)]
    ops = [e.op for e in others if e.peer is not None]
    return "recv" in ops and "send" in ops[ops.index("recv") :]


def _excludes(a: Event, b: Event) -> bool:
    """Whether no rank comes to both."""
    sides = {(line, side) for line, side, _ in a.guards}
    return any((line, not side) in sides for line, side, _ in b.guards)


def _asks(of: _Place, test: Expr) -> str:
    """What a condition asks: whether something is there, for the rank, or whether that is odd; empty: for something else."""
    if isinstance(test, Ref) and (bound := _bound(of, test.path)) is not None:
        of, test = bound
    nodes = list(nodes_in(test))
    if any(isinstance(n, Op) and n.op == "%" for n in nodes):
        return "parity"
    if any(isinstance(n, Op) and n.op in ("is", "is not") for n in nodes):
        return "none"
    names = {p.rpartition(".")[2] for p in paths_in(test)}
    is_of_rank = any(known.rank_kind(n) for n in names) or any(_peer(of, Ref(p)) == _OWN for p in paths_in(test))
    return "rank" if is_of_rank else ""


def _bound(of: _Place, path: str) -> tuple[_Place, Expr] | None:
    """What a name, or an attribute of the object, is bound to, and where, if that is one thing."""
    functions = of.methods if path.startswith("self.") else [of.function]
    bound = [(f, e) for f in functions for n in f.bindings for target, e in n.pairs() if target == Ref(path)]
    if len(bound) != 1 or isinstance(bound[0][1], Fn):
        return None
    return of._replace(function=bound[0][0]), bound[0][1]


def _peer(of: _Place, e: Expr | None, steps: int = _MOST_STEPS) -> Peer:
    """Whom an expression names, seen from the rank itself; None: that is not clear."""
    if e is None or steps == 0:
        return None
    match e:
        case Call():
            return _OWN if known.rank_kind(name_of(e)) == "rank" and len(e.args) <= 1 else None
        case Op(op="if", parts=[_, a, b]):
            sides = [_peer(of, p, steps - 1) for p in (a, b) if p != Const(None)]
            return sides[0] if len(set(sides)) == 1 else None
        case Op(op="%", parts=[inner, _]):
            peer = _peer(of, inner, steps - 1)
            return (peer[0], True) if peer is not None and peer[0] in ("after", "before") else None
        case Op(op="+" | "-" as op, parts=[a, b]):
            return _moved(op, a, _peer(of, a, steps - 1), _in_round(of, b), _peer(of, b, steps - 1))
        case Ref(path=path):
            return _named(of, path, steps)
    return None


def _moved(op: str, a: Expr, left: Peer, b: Expr, right: Peer) -> Peer:
    """`rank + 1`, `rank - 1 + world`, `1 - rank`."""
    if left is not None and right is None:
        if name_of(b) in _ALL_RANKS:
            return left
        is_after = (op == "+") != (isinstance(b, Const) and isinstance(b.value, int) and b.value < 0)
        return ("after" if is_after else "before", False) if left[0] == "own" else None
    if right is not None and left is None and right[0] == "own":
        if op == "-":
            return "other", True
        return right if name_of(a) in _ALL_RANKS else ("after", False)
    return None


def _in_round(of: _Place, e: Expr) -> Expr:
    """What a name is in this round of a loop."""
    return next((one for name, _, one in of.named[::-1] if e == Ref(name)), e)


def _named(of: _Place, path: str, steps: int) -> Peer:
    for name, where, one in of.named[::-1]:
        if path == name:
            return _peer(where, one, steps - 1)
    if "." not in path and path in of.function.parameters:
        i = of.function.parameters.index(path)
        return _OWN if known.rank_kind(path) == "rank" else ("param", i)
    if (bound := _bound(of, path)) is not None:
        peer = _peer(*bound, steps - 1)
        is_foreign = bound[0].function is not of.function and peer is not None and peer[0] == "param"
        return None if is_foreign else peer  # a parameter of __init__ is none of this function
    return _OWN if known.rank_kind(path.rpartition(".")[2]) == "rank" else None
