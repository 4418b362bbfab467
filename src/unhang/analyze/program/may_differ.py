"""How likely an expression has another value on each rank, by what the source binds to its names.

A condition on a step counter comes out alike everywhere, one on a batch, a clock or a file need not. What ranks have agreed on by
a collective is the same again. What the source does not tell is told by the name; else it is open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.trees import (
    Bound,
    Function,
    Scopes,
    argument_of,
    blocks_of,
    file_of,
    imports_beside,
    is_local_namesake,
    last_name,
    parameters_of,
    signal_handlers,
    tree_of,
)
from unhang.model.lazy_pattern import lazy_pattern

SAME, OPEN, OWN = 0, 1, 2
_MOST_STEPS = 600
_MOST_HOPS, _MOST_HOPS_OF_A_WORD = 6, 1  # what is followed further hangs on everything
_DATA = lazy_pattern(
    r"nan|inf$|isinf|finite|bad|skip|overflow|found|loss|(?<!requires_)grad|none|exists|isfile|isdir|empty|valid|error|fail|^any$|^all$",
    re.IGNORECASE,
)
_ROUNDS = lazy_pattern(
    r"(?:global_?|cur(?:rent)?_?|num_?|max_?|n_?)?(?:step|epoch|iter|iteration|update)s?(?:_?(?:idx|no|num))?|it|i|batch_idx|every",
    re.IGNORECASE,
)
_LOADED = lazy_pattern(r"load|data|batch|sample|stream|reader|shard", re.IGNORECASE)
_AGREES = lazy_pattern(r"all_?reduce|broadcast|gather|^reduce$")
_BUILT_IN = frozenset(
    ("len", "int", "float", "bool", "str", "abs", "min", "max", "sum", "any", "all", "round", "sorted", "list", "tuple", "set", "dict",
     "enumerate", "zip", "range", "reversed", "iter", "next", "isinstance", "type", "divmod", "trange", "tqdm", "islice", "ceil", "floor")
)  # fmt: skip
_SEEN_HERE = frozenset(
    ("exists", "isfile", "isdir", "is_file", "is_dir", "is_set", "qsize", "get_nowait", "listdir", "glob", "iterdir", "monotonic",
     "perf_counter", "time", "gethostname", "getpid", "getmtime", "memory_allocated", "max_memory_allocated", "virtual_memory", "random")
)  # fmt: skip
_EVEN_PARTS = lazy_pattern(r"Distributed\w*Sampler$")  # as many samples for each rank
_SAMPLERS = ("sampler", "batch_sampler")
_OF_MANY = ("len", "any", "all")
_OWN_NUMBERS = ("rank", "local", "zero", "local zero", "last")
_ALIKE = lazy_pattern(
    r"(?:named_)?(?:parameters|buffers|modules|children)|is_initialized|is_\w*available|get_world_size|is_\w+_enabled"
)
_THROUGH = frozenset(("item", "keys", "values", "items", "get", "tolist", "cpu", "detach", "float", "numel", "size", "sum", "mean", "max", "min"))  # fmt: skip


_DRAWS = frozenset(("random", "rand", "randn", "randint", "randrange", "uniform", "choice", "getrandbits", "bernoulli", "random_sample"))  # fmt: skip


def is_drawn(node: ast.expr) -> bool:
    """Whether an expression asks a generator of random numbers, of which each rank has its own."""
    return any(isinstance(n, ast.Call) and last_name(n.func) in _DRAWS for n in ast.walk(node))


_CAUGHT = ast.Name("error_caught")  # a word of what a rank has for itself


def may_differ(path: str, node: ast.expr, scopes: Scopes, by_rank: bool = True, is_test: bool = True) -> int:
    """SAME: the same on all ranks; OWN: a rank has its own, as it comes from its data, its number, a clock, a file; OPEN: not known.

    `by_rank`: whether the rank's number counts where the expression itself names it. `is_test`: it is one, not what a loop goes over.
    """
    judge = _Judge(path, by_rank)
    try:
        return judge.test(node, scopes) if is_test else judge.of(node, scopes)
    except RecursionError:
        return OPEN


def _is_first(bound: Bound) -> bool:
    """Whether it is what an object begins with."""
    function = next((n for n in reversed(bound.scopes) if isinstance(n, Function)), None)
    return function is not None and function.name == "__init__"


class _Judge:
    """Judges expressions of one file, and those of files beside it that they lead to; never raises."""

    def __init__(self, path: str, by_rank: bool) -> None:
        self._by_rank = by_rank
        self._at = self._first = file_of(path)
        self._steps = 0
        self._within: set[object] = set()
        self._given: list[tuple[Function, dict[str, int]]] = []
        self._only_asks_whether = False

    def _word(self, name: str) -> int:
        is_direct = not self._within and not self._by_rank
        word = SAME if is_direct and kind_of_name(name) in _OWN_NUMBERS else by_word(name)
        is_guess = word == OWN and kind_of_name(name) not in _OWN_NUMBERS
        return OPEN if is_guess and len(self._within) > _MOST_HOPS_OF_A_WORD else word

    def test(self, node: ast.expr, scopes: Scopes) -> int:
        """The same of a condition: one that only asks whether there is an object hangs on nothing in it."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self.test(inner, scopes)
            case ast.BoolOp(values=values):
                return max(self.test(v, scopes) for v in values)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
                return self._whether(left, scopes)
        return self._whether(node, scopes) if isinstance(node, ast.Name | ast.Attribute) else self.of(node, scopes)

    def _whether(self, node: ast.expr, scopes: Scopes) -> int:
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return OWN  # of a parameter that a rank has not used, or has frozen
        self._only_asks_whether = True
        found = self.of(node, scopes)
        self._only_asks_whether = False
        return (
            OPEN if found == SAME and isinstance(node, ast.Attribute) and self._comes_and_goes(node, scopes) else found
        )

    def _comes_and_goes(self, node: ast.Attribute, scopes: Scopes) -> bool:
        """Whether one method makes an attribute None again, and another fills it: who calls which of them is for each rank to say."""
        for _, bound in self._of_one_class("attributes", node, scopes):
            emptied = [isinstance(b.value, ast.Constant) and b.value.value is None for b in bound if not _is_first(b)]
            return True in emptied and False in emptied
        return False

    def of(self, node: ast.expr | None, scopes: Scopes) -> int:
        """How likely the value of an expression differs."""
        self._steps += 1
        if node is None or self._steps > _MOST_STEPS:
            return OPEN
        match node:
            case ast.Constant() | ast.Lambda():
                return SAME
            case ast.Name():
                return self._name(node.id, scopes)
            case ast.Attribute():
                return self._attribute(node, scopes)
            case ast.Call():
                if self._only_asks_whether and last_name(node.func)[:1].isupper():
                    return SAME  # an object
                was, self._only_asks_whether = self._only_asks_whether, False
                found = self._call(node, scopes)
                self._only_asks_whether = was
                return found
            case ast.BinOp(op=ast.Mod()):
                every = self.of(node.right, scopes)
                return max(self.of(node.left, scopes), every if every == OWN else SAME)
        return self._most(_parts(node), scopes)

    def _most(self, nodes: Iterable[ast.expr], scopes: Scopes) -> int:
        most = SAME
        for node in nodes:
            most = max(most, self.of(node, scopes))
            if most == OWN:
                break
        return most

    def _name(self, name: str, scopes: Scopes) -> int:
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef) and scope is not scopes[-1]:
                continue
            if (scope, name) in self._at.agreed:
                return SAME
            if (scope, name) in self._at.variables:
                return self._bound(self._at.variables[scope, name], ("name", scope, name))
            if isinstance(scope, Function) and name in _all_parameters(scope):
                return self._argument(scope, name)
        beside = imports_beside(self._at.path).get(name)
        tree = tree_of(beside) if beside else None
        if beside and tree is not None:
            return self._in(beside, partial(self._name_there, name, tree))
        return SAME if name in self._at.functions or name in self._at.classes else self._word(name)

    def _name_there(self, name: str, tree: ast.Module) -> int:
        bound = self._at.variables.get((tree, name))
        return self._bound(bound, ("name", tree, name)) if bound else SAME

    def _bound(self, bound: Iterable[Bound], key: object) -> int:
        if key in self._within:
            return SAME
        if len(self._within) >= _MOST_HOPS:
            return OPEN
        self._within.add(key)
        most = max((self._of_bound(b) for b in bound), default=OPEN)
        self._within.discard(key)
        return most

    def _of_bound(self, b: Bound) -> int:
        if b.in_handler or self._is_of_signal(b):
            return OWN
        value = b.value
        if b.is_round and isinstance(value, ast.Call) and last_name(value.func) in ("range", "trange", "count"):
            own = self._most(
                value.args[:1] if len(value.args) > 1 or last_name(value.func) == "count" else (), b.scopes
            )
        else:
            own = self.of(value, b.scopes)
            words = ast.unparse(value) if b.is_round and value is not None else ""
            if "loader" in words.lower() or (own == OPEN and _LOADED.search(words)):
                own = OWN  # what a loader gives differs, also where all have as much of it
        return max(own, self._most(b.tests, b.scopes)) if own < OWN else own

    def _is_of_signal(self, b: Bound) -> bool:
        """Whether a handler of signals binds it: a signal reaches each process at a time of its own, or one alone."""
        function = next((n for n in reversed(b.scopes) if isinstance(n, Function)), None)
        return function is not None and function.name in signal_handlers(self._at.path)

    def _argument(self, function: Function, name: str) -> int:
        for called, given in reversed(self._given):
            if called is function and name in given:
                return given[name]
        word = self._word(name)
        if word != OPEN or name in ("self", "cls"):
            return SAME if name in ("self", "cls") else word
        key = ("argument", function, name)
        if key in self._within or len(self._within) >= _MOST_HOPS:
            return OPEN
        self._within.add(key)
        found = []
        for path in dict.fromkeys((self._at.path, self._first.path)):
            for call, scopes in file_of(path).calls.get(function.name, ()):
                if (given_there := argument_of(call, function, name)) is not None:
                    found.append(self._in(path, partial(self.of, given_there, scopes)))
        self._within.discard(key)
        return max(found, default=OPEN)

    def _attribute(self, node: ast.Attribute, scopes: Scopes) -> int:
        attr = node.attr
        if (None, attr) in self._at.agreed and last_name(node.value) == "self":
            return SAME
        for path, functions in self._of_one_class("functions", node, scopes):
            return self._in(path, partial(self._returned, functions, {}))
        for path, bound in self._of_one_class("attributes", node, scopes):
            return self._in(path, partial(self._bound, bound, ("attribute", path, attr)))
        word = self._word(attr)
        return word if word != OPEN else max(word, self.of(node.value, scopes))

    def _of_one_class(self, kind: str, node: ast.Attribute, scopes: Scopes) -> Iterator[tuple[str, list[Any]]]:
        """What the program binds to an attribute: in the class of `self`; of another object where only one class has it."""
        own = next((n for n in reversed(scopes) if isinstance(n, ast.ClassDef)), None)
        found: dict[tuple[str, ast.AST], list[Any]] = {}
        for path in self._files():
            for entry in getattr(file_of(path), kind).get(node.attr, ()):
                of = next((n for n in reversed(entry[-1]) if isinstance(n, ast.ClassDef)), None)
                if of is not None:
                    found.setdefault((path, of), []).append(entry)
        mine = [x for x in found if x[1] is own] if last_name(node.value) in ("self", "cls") else []
        chosen = mine or (list(found) if len(found) == 1 else [])
        yield from ((path, found[path, of]) for path, of in chosen)

    def _files(self) -> Iterator[str]:
        yield self._at.path
        yield from dict.fromkeys(imports_beside(self._at.path).values())

    def _in(self, path: str, ask: Callable[[], int]) -> int:
        """The answer to a question that is asked in another file."""
        here, self._at = self._at, file_of(path)
        try:
            return ask()
        finally:
            self._at = here

    def _call(self, node: ast.Call, scopes: Scopes) -> int:
        name, arguments = last_name(node.func), [*node.args, *(k.value for k in node.keywords)]
        if _ALIKE.fullmatch(name) or (_AGREES.search(name) and not is_local_namesake(node)):
            return SAME
        if name in _SEEN_HERE:
            return OWN
        if kind_of_name(name) in _OWN_NUMBERS:
            return self._word(name)
        if isinstance(node.func, ast.Name) and name in _BUILT_IN:
            most = self._most(arguments, scopes)
            return OWN if most == OPEN and name in _OF_MANY else most
        if _EVEN_PARTS.search(name):
            return OWN if self._most(arguments[:1], scopes) == OWN else SAME
        if name.endswith("DataLoader") and (samplers := [k.value for k in node.keywords if k.arg in _SAMPLERS]):
            return self._most(samplers, scopes)
        for path, functions in self._called(node.func, scopes):
            given: dict[int | str | None, int] = {i: self.of(a, scopes) for i, a in enumerate(node.args)}
            given.update((k.arg, self.of(k.value, scopes)) for k in node.keywords)
            return self._in(path, partial(self._returned, functions, given))
        if any(name in file_of(path).classes for path in self._files()):
            return self._most(arguments, scopes)
        base = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        own = self._most((*base, *arguments), scopes)
        return own if name in _THROUGH and base else max(own, OPEN, self._word(name))

    def _called(self, of: ast.expr, scopes: Scopes) -> Iterator[tuple[str, list[tuple[Function, Scopes]]]]:
        """The functions of the program that a call means; nothing where it may be one of several classes."""
        if isinstance(of, ast.Attribute):
            yield from self._of_one_class("functions", of, scopes)
            if not isinstance(of.value, ast.Name) or of.value.id not in imports_beside(self._at.path):
                return
        for path in self._files():
            entries = file_of(path).functions.get(last_name(of), [])
            if free := [x for x in entries if not any(isinstance(n, ast.ClassDef) for n in x[1])]:
                yield path, free
                return

    def _returned(self, functions: list[tuple[Function, Scopes]], given: dict[int | str | None, int]) -> int:
        """What functions return, given what may differ of their arguments."""
        return max((self._result(f, around, given) for f, around in functions), default=OPEN)

    def _result(self, function: Function, around: Scopes, given: dict[int | str | None, int]) -> int:
        key = ("function", function)
        if key in self._within:
            return SAME
        if len(self._within) >= _MOST_HOPS:
            return OPEN
        parameters = [p for p in parameters_of(function) if p not in ("self", "cls")]
        known = {p: given.get(i, given.get(p, SAME)) for i, p in enumerate(parameters)}
        self._within.add(key)
        self._given.append((function, known))
        scopes, most = (*around, function), SAME
        for value, tests in _returns(function.body, ()):
            if most == OWN:
                break
            most = max(most, self._most((value, *tests) if value is not None else tests, scopes))
        self._given.pop()
        self._within.discard(key)
        return most


def _all_parameters(function: Function) -> list[str]:
    a = function.args
    return [*parameters_of(function), *(p.arg for p in (a.vararg, a.kwarg) if p is not None)]


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions next below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)


def _returns(
    body: Iterable[ast.stmt], tests: tuple[ast.expr, ...]
) -> Iterator[tuple[ast.expr | None, tuple[ast.expr, ...]]]:
    """What a function returns or yields, and under which tests."""
    for s in body:
        match s:
            case ast.Return():
                yield s.value, tests
            case ast.Expr(value=ast.Yield(value=value) | ast.YieldFrom(value=value)):
                yield value, tests
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case _:
                asks = (s.test,) if isinstance(s, ast.If | ast.While) else (s.iter,) if isinstance(s, ast.For) else ()
                for block in blocks_of(s):
                    yield from _returns(block, (*tests, *asks))
                for handler in getattr(s, "handlers", ()):
                    yield from _returns(handler.body, (*tests, _CAUGHT))


def by_word(name: str) -> int:
    """What a name alone says: counters of rounds are the same everywhere, what is found in data or on a disk is not."""
    kind = kind_of_name(name)
    if kind == "world" or name.isupper() or _ROUNDS.fullmatch(name):
        return SAME
    return OWN if kind in _OWN_NUMBERS or _DATA.search(name) else OPEN
