"""All files together: which function or class a name means, in which file."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from unhang.lint import known
from unhang.lint.ir import Call, Const, Expr, File, Function, If, Leave, Op, Ref, Set, Stmt, calls_in, nodes_in
from unhang.lint.special import name_of, variable_asked

_MOST_STEPS = 6
_LEAST_WORD = 5
_MOST_LIKE = 20
# Three words that are no plain verb of libraries (`load_state_dict`), or two that are bound together.
_DISTINCT = re.compile(
    r"(?!_|(?:load|save|get|set|register|from|named|zero|to|init|add|is|has|on|all|run|make|create|build|train|test|eval)_)\w{3,}_\w+_\w{3,}"
    r"|[a-z]\w*_(?:for|from|with|of|to|across|between|over|and)_\w{3,}"
)


class Symbol(NamedTuple):
    """`kind`: fn, class, module or var. `at`: number of the function; `name`: of the class or variable."""

    kind: str
    file: int
    at: int = 0
    name: str = ""


class Project:
    """The files that were parsed, and their names."""

    def __init__(self, files: Sequence[File]) -> None:
        self.files = [f for f in files if f.is_parsed]
        paths = [os.path.abspath(f.path) for f in self.files]
        self._by_path = {path: i for i, path in enumerate(paths)}
        self._folders = [os.path.dirname(path) for path in paths]
        self._functions: list[dict[str, int]] = []
        self._methods: list[dict[str, dict[str, int]]] = []
        for file in self.files:
            functions: dict[str, int] = {}
            methods: dict[str, dict[str, int]] = {}
            for at, function in enumerate(file.functions):
                if function.owner:
                    methods.setdefault(function.owner, {})[function.name] = at
                elif function.inside == 0:
                    functions[function.name] = at
            self._functions.append(functions)
            self._methods.append(methods)
        self._found: dict[tuple[int, str], Symbol | None] = {}
        self._modules: dict[tuple[str, str], int | None] = {}
        self._bases: dict[tuple[int, str], list[tuple[int, str]]] = {}
        self._like: dict[tuple[str, str, bool], tuple[int, int] | None] = {}
        self._stars = [[full for name, full in f.names.items() if name[0] == "*"] for f in self.files]
        self._gates: dict[tuple[int, int], bool] = {}
        self._flags: dict[tuple[str, str], bool] = {}
        self._picked_by: dict[str, bool] = {}

    @cached_property
    def functions(self) -> Mapping[tuple[int, int], Function]:
        """Every function, by its file and number."""
        return {(i, at): f for i, of in enumerate(self.files) for at, f in enumerate(of.functions)}

    def function(self, file: int, at: int) -> Function:
        """One function."""
        return self.files[file].functions[at]

    def module(self, name: str, file: int) -> int | None:
        """The file that a module name means in an import of this file; leading dots are relative."""
        folder = self._folders[file]
        key = (name, folder)
        if key not in self._modules:
            self._modules[key] = self._module(name, folder)
        return self._modules[key]

    def _module(self, name: str, folder: str) -> int | None:
        bare = name.lstrip(".")
        dots = len(name) - len(bare)
        below = bare.replace(".", os.sep)
        for _ in range(max(dots - 1, 0)):
            folder = os.path.dirname(folder)
        for _ in range(1 if dots else _MOST_STEPS):
            base = os.path.join(folder, below) if below else folder
            for path in (f"{base}.py", f"{base}{os.sep}__init__.py"):
                if path in self._by_path:
                    return self._by_path[path]
            folder = os.path.dirname(folder)
        return None

    def find(self, file: int, name: str, depth: int = 0) -> Symbol | None:
        """What a plain name means at the top of a file, also through imports; None: it is not of the project."""
        key = (file, name)
        if key in self._found:
            return self._found[key]
        self._found[key] = None
        self._found[key] = found = self._find(file, name, depth)
        return found

    def _find(self, file: int, name: str, depth: int) -> Symbol | None:
        if name in self._functions[file]:
            return Symbol("fn", file, self._functions[file][name], name)
        of = self.files[file]
        if name in of.classes:
            return Symbol("class", file, 0, name)
        if depth > _MOST_STEPS:
            return None
        if name in of.names:
            return self.find_full(file, of.names[name], depth + 1)
        for full in self._stars[file]:
            module = self.module(full[:-2] if full[:-2].strip(".") else full[:-1], file)
            found = self.find(module, name, depth + 1) if module is not None else None
            if found is not None:
                return found
        return None

    def find_full(self, file: int, full: str, depth: int = 0) -> Symbol | None:
        """What a full name means, as an import of this file has it."""
        module = self.module(full, file)
        if module is not None:
            return Symbol("module", module)
        bare = full.lstrip(".")
        dots = full[: len(full) - len(bare)]
        head, _, last = bare.rpartition(".")
        if not head and not dots:
            return None
        module = self.module(dots + head, file)
        if module is not None:
            return self.find(module, last, depth) or Symbol("var", module, 0, last)
        return None

    def full_name(self, symbol: Symbol) -> str:
        """The name under which others import it."""
        module = self.files[symbol.file].module
        return f"{module}.{symbol.name}" if symbol.name else module

    def bases(self, file: int, name: str) -> list[tuple[int, str]]:
        """A class and the classes of the project that it inherits from, itself first."""
        key = file, name
        if key not in self._bases:
            self._bases[key] = self._found_bases(key)
        return self._bases[key]

    def _found_bases(self, cls: tuple[int, str]) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        todo = [cls]
        while todo:
            one = todo.pop(0)
            if one in found or len(found) > 12:
                continue
            found.append(one)
            for base in self.files[one[0]].classes.get(one[1], ()):
                symbol = self.symbol_of(one[0], base)
                if symbol is not None and symbol.kind == "class":
                    todo.append((symbol.file, symbol.name))
        return found

    def base_names(self, file: int, name: str) -> set[str]:
        """Full names of all that a class inherits from outside the project."""
        return {
            self.resolved(f, base) for f, cls in self.bases(file, name) for base in self.files[f].classes.get(cls, ())
        }

    def resolved(self, file: int, dotted: str) -> str:
        """A dotted name with its import put in."""
        head, dot, rest = dotted.partition(".")
        return self.files[file].names.get(head, head) + dot + rest

    def symbol_of(self, file: int, dotted: str) -> Symbol | None:
        """What a dotted name means at the top of a file."""
        head, _, rest = dotted.partition(".")
        if not rest:
            return self.find(file, head)
        if dotted in self.files[file].classes:
            return Symbol("class", file, 0, dotted)
        full = self.files[file].names.get(head)
        return None if full is None else self.find_full(file, f"{full}.{rest}")

    def method(self, file: int, cls: str, name: str) -> tuple[int, int] | None:
        """The function that a method of a class is, also an inherited one."""
        for f, c in self.bases(file, cls):
            if name in self.methods_of(f, c):
                return f, self.methods_of(f, c)[name]
        return None

    def fields_of(self, file: int, cls: str) -> list[str]:
        """What a data class is made of, in the order in which it is given."""
        below = [self.files[f].fields.get(c, []) for f, c in self.bases(file, cls)]
        return list(dict.fromkeys(field for of in reversed(below) for field in of))

    def is_module(self, file: int, cls: str) -> bool:
        """Whether a class is a torch module."""
        return any(b.rpartition(".")[2] == "Module" for b in self.base_names(file, cls))

    def by_receiver(self, receiver: str, name: str, is_exact: bool = False) -> tuple[int, int] | None:
        """The one method of this name whose class is called like its receiver: `evaluator.run` of a `CocoEvaluator`; `is_exact`: of an `Evaluator`."""
        key = receiver.rpartition(".")[2], name, is_exact
        if key not in self._like:
            self._like[key] = self._found_like(*key)
        return self._like[key]

    def _found_like(self, last: str, name: str, is_exact: bool) -> tuple[int, int] | None:
        word = last.replace("_", "").lower()
        if len(word) < _LEAST_WORD or name.startswith("__"):
            return None
        methods = self.methods_called(name)
        end = last.rpartition("_")[2] if name in known.NAMES else word
        alike = [c for c in methods if c[0].endswith(word)] or [c for c in methods if c[0].endswith(end or word)]
        if is_exact:
            alike = [c for c in methods if c[0] == word]
        if len(alike) > 1:  # one that does nothing is for a single process, or abstract
            alike = [c for c in alike if self.function(*c[1:]).words]
        return alike[0][1:] if len(alike) == 1 else None

    def by_name(self, name: str) -> tuple[int, int] | None:
        """The one method of the project of this name, if it is a name that nobody else would give: `format_for_prediction`."""
        if name in known.WORDS or _DISTINCT.fullmatch(name) is None:
            return None
        methods = self.methods_called(name)
        return methods[0][1:] if len(methods) == 1 else None

    def methods_called(self, name: str) -> list[tuple[str, int, int]]:
        """Every method of this name: its class in small letters, file, number."""
        return self._by_name.get(name, [])

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[str, int, int]]]:
        found: dict[str, list[tuple[str, int, int]]] = {}
        for file, classes in enumerate(self._methods):
            for cls, methods in classes.items():
                for method, at in methods.items():
                    found.setdefault(method, []).append((cls.rpartition(".")[2].lower(), file, at))
        return found

    def is_flag(self, called: str, parameter: str, at: int) -> bool:
        """Whether callers say as they please what is named like a rank: `load(path, rank0=True)`."""
        key = called, parameter
        if key not in self._flags:
            self._flags[key] = False
            for f in (f for of in self.files for f in of.functions if called in f.words):
                for given in (n.given(parameter, at) for n in calls_in(f.body) if name_of(n) == called):
                    passed = isinstance(given, Ref) and given.path == parameter and parameter in f.parameters
                    if isinstance(given, Const) or (
                        passed and self.is_flag(f.name, parameter, f.parameters.index(parameter) - f.is_method)
                    ):
                        self._flags[key] = True
        return self._flags[key]

    def callers_by_name(self, name: str) -> list[tuple[tuple[int, int], Function]]:
        """Every function that calls something of this name."""
        return [(key, self.functions[key]) for key in self._by_word.get(name, ())]

    @cached_property
    def _by_word(self) -> dict[str, list[tuple[int, int]]]:
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for key, function in self.functions.items():
            for word in function.words:
                found[word].append(key)
        return dict(found)

    def naming(self, words: Iterable[str]) -> set[tuple[int, int]]:
        """Every function that calls something of one of these names, or is decorated by it."""
        found: set[tuple[int, int]] = set()
        for word in words:
            found.update(self._by_word.get(word, ()), self._by_decorator.get(word, ()))
        return found

    @cached_property
    def _by_decorator(self) -> dict[str, list[tuple[int, int]]]:
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for key, function in self.functions.items():
            for decorator in function.decorators:
                found[decorator.rpartition(".")[2]].append(key)
        return dict(found)

    def is_sorted_by(self, e: Expr) -> bool:
        """Whether batches are picked elsewhere by whether they have the part that is asked for here: all ranks have it at once, perhaps."""
        words = [n.value for n in nodes_in(e) if isinstance(n, Const) and isinstance(n.value, str)]
        return any(map(self._is_picked_by, words))

    def _is_picked_by(self, word: str) -> bool:
        if word not in self._picked_by:
            raw = [f for f in self.functions.values() if word.encode() in (b := bytes(f.raw)) and b"comp" in b]
            made = (n for f in raw for n in nodes_in(f.body) if isinstance(n, Op) and n.op == "comp")
            asked = (c for n in made for loop in n.parts[1:] if isinstance(loop, Op) for c in loop.parts[2:])
            self._picked_by[word] = any(n == Const(word) for c in asked for n in nodes_in(c))
        return self._picked_by[word]

    def implementation(self, file: int, at: int) -> tuple[int, int]:
        """The function that is meant by a method without a body, if one subclass alone has it; else the method itself."""
        function = self.function(file, at)
        if not function.owner or set(function.words) - {"NotImplementedError"}:
            return file, at
        if any(not isinstance(s, Leave) or s.kind != "raise" for s in function.body):
            return file, at
        others = [c for c in self.methods_called(function.name) if c[1:] != (file, at)]
        if len(others) > _MOST_LIKE:
            return file, at
        own = (file, function.owner)
        below = [(f, n) for _, f, n in others if own in self.bases(f, self.function(f, n).owner)]
        return below[0] if len(below) == 1 else (file, at)

    def all_methods(self, file: int, cls: str) -> list[Function]:
        """The methods of a class, and of those that it inherits from."""
        return [self.function(f, at) for f, c in self.bases(file, cls) for at in self.methods_of(f, c).values()]

    def methods_of(self, file: int, cls: str) -> dict[str, int]:
        """The methods that a class itself has."""
        return self._methods[file].get(cls, {})

    def is_gate(self, file: int, decorator: str) -> bool:
        """Whether a decorator calls what it decorates on one rank only: by its name, or as it is one of the project with `if rank == 0: return fn(...)`."""
        if decorator.rpartition(".")[2] in known.ONE_RANK_DECORATORS:
            return True
        symbol = self.symbol_of(file, decorator)
        if symbol is None or symbol.kind != "fn":
            return False
        key = (symbol.file, symbol.at)
        if key not in self._gates:
            found = self.decorating(symbol)
            inner = found[1].body if found is not None else []
            firsts = [n.func for n in calls_in(inner) if self._says_who_is_first(symbol.file, n)]
            self._gates[key] = bool(inner) and _lets_one_through(self.function(*key).parameters[0], inner, firsts)
        return self._gates[key]

    def _says_who_is_first(self, file: int, node: Call) -> bool:
        """Whether a call is one of a function of the project that does nothing but ask for the first rank: `def is_first(): return int(os.environ["RANK"]) == 0`."""
        symbol = self.symbol_of(file, node.func.path) if isinstance(node.func, Ref) and not node.args else None
        body = self.function(symbol.file, symbol.at).body if symbol is not None and symbol.kind == "fn" else []
        match body:
            case [Leave(kind="return", value=test)] if test is not None:
                return _is_of_rank(test)
        return False

    def decorating(self, symbol: Symbol) -> tuple[int, Function] | None:
        """The one function that is written in a decorator."""
        functions = enumerate(self.files[symbol.file].functions)
        inner = [(at, f) for at, f in functions if f.inside == symbol.at and f.name != "<lambda>"]
        return inner[0] if len(inner) == 1 and self.function(symbol.file, symbol.at).parameters else None


def _lets_one_through(name: str, body: list[Stmt], firsts: list[Expr]) -> bool:
    """`firsts`: functions that ask for the first rank. One that notes meanwhile that it runs tells others, who may keep to themselves."""
    decorated = Ref(name)
    calls = [n for n in calls_in(body) if n.func == decorated]
    tests = [n for n in nodes_in(body) if isinstance(n, If)]
    by_rank = [n for n in tests if (_is_of_rank(n.test) or _asks(n.test, firsts)) and not n.orelse]
    inside = [n for b in by_rank for n in calls_in(b.body) if n.func == decorated]
    if len(calls) != 1 or any(_is_note(t) for n in nodes_in(body) if isinstance(n, Set) for t in n.targets):
        return False
    others = [n.test for n in tests if isinstance(n.test, Op) and n.test.op == "not" and _asks(n.test.parts[0], firsts)]
    left = [s.body[-1] for s in body if isinstance(s, If) and (_is_of_others(s.test) or s.test in others)]
    leaves = any(isinstance(s, Leave) and s.kind == "return" and s.line < calls[0].line for s in left)
    return len(inside) == 1 or (not inside and leaves)


def _asks(test: Expr, firsts: list[Expr]) -> bool:
    return isinstance(test, Call) and test.func in firsts


def _is_note(target: Expr) -> bool:
    """`os.environ["SOLO"] = "1"`, `state.alone = True`."""
    return (isinstance(target, Op) and target.op == "[]") or (isinstance(target, Ref) and "." in target.path)


def _is_of_others(test: Expr) -> bool:
    """`rank != 0`, `not is_main_process()`."""
    match test:
        case Op(op="not", parts=[inner]):
            return _is_of_rank(inner)
        case Op(op="!=", parts=[of, Const(value=0)]):
            return _is_of_rank(Op("==", [of, Const(0)]))
    return False


def _is_of_rank(test: Expr) -> bool:
    """Whether a condition is for one rank, by its names, or for a job of one."""
    match test:
        case Op(op="or", parts=parts):
            others = [p for p in parts if not _is_of_rank(p)]
            return len(others) < len(parts) and all(map(_is_not_distributed, others))
        case Op(op="==", parts=[Ref() | Call() | Op() as of, Const(value=0 | "0")]) | (Ref() | Call() as of):
            inner = of.args[0] if isinstance(of, Call) and of.func == Ref("int") and len(of.args) == 1 else of
            if (name := variable_asked(inner)) is not None:
                return known.rank_kind(name.lower()) is not None and isinstance(test, Op)
            path = of.func if isinstance(of, Call) else of
            kind = known.rank_kind(path.path.rpartition(".")[2]) if isinstance(path, Ref) else None
            return kind is not None and (isinstance(test, Op) or kind == "zero")
    return False


def _is_not_distributed(test: Expr) -> bool:
    match test:
        case Op(op="not", parts=[Ref(path=path)]) | Op(op="not", parts=[Call(func=Ref(path=path))]):
            return path.rpartition(".")[2] in known.SINGLE
    return False
