"""The whole project: what each function does, found once, when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from unhang.lint import known, libraries
from unhang.lint.buffers import Buffers
from unhang.lint.divergence import GROUPS
from unhang.lint.ir import Expr, File, Found, Ref, Set, nodes_in
from unhang.lint.project import Project, Symbol
from unhang.lint.values import FAILED, LOCAL, NO_PARAMS, OWN_KEYS, PLAIN, RAISED, UNEVEN, Effect, Summary, Value, either

_DEEPEST = 40
_GATHERED_WHOLE = {"set_z3_leaf_modules", "set_z3_leaf_module"}


class Report(NamedTuple):
    """A finding, and the files in which functions were followed that found it."""

    path: str
    found: Found
    by: set[int]


class Link:
    """What is known so far. `findings`: (path, code, line, column) -> what was found there."""

    def __init__(self, files: Sequence[File], contents: Mapping[str, bytes] | None = None) -> None:
        self.project = Project(files)
        self.buffers = Buffers(contents or {})
        self.closures: dict[tuple[int, int], dict[str, Value]] = {}
        self.findings: dict[tuple[str, str, int, int], Report] = {}
        self.groups: dict[tuple[int, str], set[tuple[int, int]]] = {}
        self.threads: list[tuple[str, int, tuple[Any, ...], list[Effect], Found, bool]] = []
        self.handlers: list[Value] = []
        self.flags: set[str] = set()
        self.given: set[tuple[int, str, str]] = set()  # attributes of objects that are what somebody gave
        self.of_first: set[tuple[int, str]] = set()  # flags of objects that the first rank alone sets
        self.dictionaries: dict[tuple[int, int, str], set[str]] = {}  # names that begin as empty dictionaries
        self.keyed: set[tuple[int, str, str]] = set()  # attributes of objects that have other keys on each rank
        self.global_flags: set[tuple[int, str]] = set()
        self.wrapped: dict[tuple[int, str], Value] = {}
        self.without_limit: dict[tuple[str, int], Found] = {}
        self.built: dict[tuple[int, str], dict[int, Value]] = {}
        self._summaries: dict[tuple[int, int, frozenset[tuple[int, Value]]], Summary] = {}
        self._tops: dict[tuple[int, str], Value] = {}
        self._modules: dict[int, dict[str, Value]] = {}
        self._begun: dict[int, Any] = {}  # frames of the modules whose lines are being followed
        self._attributes: dict[tuple[int, str], dict[str, Value]] = {}
        self._causes: dict[tuple[str, str, str, str], tuple[str, str, int, int]] = {}
        self._following: list[int] = []  # the files of the functions that are being followed now
        self._used: dict[int, set[int]] = {}  # file -> files whose functions asked something of it
        self.whole = self._kept_whole(files)
        self.trains = any(n.startswith("torch.distributed") for f in files for n in f.names.values())
        self.is_parallel = any(n.startswith(libraries.PARALLEL) for f in files for n in f.names.values())
        self.wraps = any(n in known.WRAPPERS or n == "deepspeed" for f in files for n in f.names.values())
        self.skips_layers = False  # a module of the project runs its layers by what is in the batch
        self.asks_grads: set[int] = set()  # files that ask which gradients there are
        self.has_pipes = any(n.startswith(libraries.PIPES) for f in files for n in f.names.values())
        self.callers: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def _kept_whole(self, files: Sequence[File]) -> set[str]:
        """Classes that are named where modules are told to be gathered as a whole: which of their layers run is nothing to the others."""
        told = {i for i, f in enumerate(files) for x in f.functions if not _GATHERED_WHOLE.isdisjoint(x.words)}
        return {full.rpartition(".")[2] for i in told for full in files[i].names.values()}

    def run(self) -> Iterator[tuple[str, Found]]:
        """Every finding, by file and line. What is learned of objects, of what is wrapped and of signals on the way is asked again where it matters."""
        roots = list(self._roots())
        for file, at in roots:
            self.summary(file, at)
        self._note_signals()
        if self._forget(self._stale()):
            for file, at in roots:
                self.summary(file, at)
        self._threads()
        for report in sorted(
            self.findings.values(), key=lambda r: (r.path, r.found.line, r.found.column, r.found.code)
        ):
            yield report.path, report.found

    def _stale(self) -> set[int]:
        """Files of which more is known now than when they were followed, and those that asked something of them."""
        if self.flags or self.global_flags:
            return set(range(len(self.project.files)))
        built = {of[0] for of, given in self.built.items() if any(v.sort is not None for v in given.values())}
        stale = (
            built
            | {file for file, *_ in self.keyed}
            | {file for file, _ in self.wrapped}
            | (self.asks_grads if self.skips_layers else set())
        )
        todo = list(stale)
        while todo:
            more = self._used.get(todo.pop(), set()) - stale
            stale |= more
            todo += more
        return stale

    def _asked(self, file: int) -> None:
        if self._following:
            self._used.setdefault(file, set()).add(self._following[-1])

    def _roots(self) -> Iterator[tuple[int, int]]:
        """Functions that may come to a collective, by the names of what they call; all others are followed when they are asked for."""
        words = set(known.WORDS)
        todo = self.project.all_functions()
        while True:
            found = [
                k
                for k, f in todo.items()
                if f.is_generator
                or f.name == "__iter__"
                or not words.isdisjoint(f.words)
                or ((self.wraps or self.trains) and f.name == "forward" and not known.FILTERS.isdisjoint(f.words))
            ]
            if not found:
                return
            for key in found:
                function = todo.pop(key)
                words |= {function.name, function.owner.rpartition(".")[2], *function.sets} - {
                    "<module>",
                    "<lambda>",
                    "",
                }
                if function.inside <= 0:
                    yield key
                else:  # what is written inside a function is followed with it, and then as what it hands out
                    words.add(self.project.function(key[0], function.inside).name)
                    yield key[0], function.inside
                    if function.name != "<lambda>":
                        yield key

    @cached_property
    def meets(self) -> set[str]:
        """Names of calls in which ranks meet: collectives, and functions that make some."""
        words, todo = set(known.MEETS), list(self.project.all_functions().values())
        while found := [f for f in todo if not words.isdisjoint(f.words) and f.inside <= 0]:
            words |= {f.name for f in found} - {"<module>", "__init__", "__call__", "forward", "main"}
            todo = [f for f in todo if words.isdisjoint(f.words)]
        return words

    def _forget(self, files: set[int]) -> bool:
        """What functions of these files gave, before more was known; whether there are any."""
        tables: tuple[dict[Any, Any], ...] = (self.closures, self._summaries, self._tops, self._attributes)
        for table in tables:
            for of in [of for of in table if of[0] in files]:
                del table[of]
        for file in files:
            self._modules.pop(file, None)
        self.threads = [t for t in self.threads if t[1] not in files]
        for key, report in list(self.findings.items()):
            report.by.difference_update(files)
            if not report.by:
                del self.findings[key]
        self._causes = {cause: key for cause, key in self._causes.items() if key in self.findings}
        return bool(files)

    def report(self, path: str, found: Found) -> None:
        """Keeps a finding, once."""
        if known.is_of_test(path, found.code):
            return
        if found.code == "LNT111":
            self.skips_layers = True
            if not self.wraps:
                return
        key = (path, found.code, found.line, found.column)
        if found.words.get("at"):
            key = self._causes.setdefault((path, found.code, found.words["at"], found.words.get("condition", "")), key)
        self.findings.setdefault(key, Report(path, found, set())).by.add(self._following[-1] if self._following else -1)

    def _leads_to(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        """Whether a function is called by another one, over others perhaps."""
        todo, seen = [end], {end}
        while todo:
            one = todo.pop()
            if one == start:
                return True
            more = self.callers.get(one, set()) - seen
            seen |= more
            todo += more
        return False

    def makers(self) -> set[str]:
        """Names at the top of files that may lead to collectives: functions, and classes by their methods."""
        functions = [self.project.function(file, at) for file, at in self._roots() if at]
        return {f.owner.partition(".")[0] or f.name for f in functions if f.inside <= 0}

    # Names.

    def top(self, file: int, name: str) -> Value:
        """What a name means at the top of a file."""
        key = (file, name)
        if key not in self._tops:
            self._tops[key] = PLAIN
            self._tops[key] = found = self._top(file, name)
            return self._tops.pop(key) if file in self._begun else found  # it may be bound later
        return self._tops[key]

    def _top(self, file: int, name: str) -> Value:
        from unhang.lint.special import TEST, value_of_name

        symbol = self.project.find(file, name)
        if symbol is not None:
            return self._of_symbol(symbol)
        own = self.module_values(file).get(name)
        if own is not None:
            return Value(LOCAL, sort=TEST) if (file, name) in self.global_flags else own
        full = self.project.files[file].names.get(name)
        if full is not None:
            return Value(sort=("ext", full.lstrip(".")))
        by_name = value_of_name(name)
        return by_name if by_name.dep else Value(sort=("ext", name))

    def _of_symbol(self, symbol: Symbol) -> Value:
        if symbol.kind == "fn":
            return Value(sort=("fn", symbol.file, symbol.at))
        if symbol.kind == "class":
            return Value(sort=("class", symbol.file, symbol.name))
        if symbol.kind == "module":
            return Value(sort=("mod", symbol.file))
        own = self.module_values(symbol.file).get(symbol.name)
        return own if own is not None else Value(sort=("ext", self.project.full_name(symbol)))

    def module_values(self, file: int) -> dict[str, Value]:
        """What the lines of the module bind."""
        self._asked(file)
        if file not in self._modules and file not in self._begun:
            self.summary(file, 0)
        return self._begun[file].env if file in self._begun else self._modules.setdefault(file, {})

    def of_module(self, file: int, name: str) -> Value:
        """An attribute of a module of the project."""
        symbol = self.project.find(file, name)
        if symbol is None:
            symbol = self.project.find_full(file, f".{name}")
        if symbol is not None and symbol.kind != "var":
            return self._of_symbol(symbol)
        return self.module_values(file).get(name) or Value(sort=("ext", f"{self.project.files[file].module}.{name}"))

    def full_of(self, v: Value) -> str:
        """The full name of a function, class or outside object; empty: it has none."""
        sort = v.sort
        if sort is None:
            return ""
        if sort[0] == "ext":
            return str(sort[1])
        if sort[0] == "fn":
            function = self.project.function(sort[1], sort[2])
            return (
                "" if function.owner or function.inside > 0 else f"{self.project.files[sort[1]].module}.{function.name}"
            )
        return f"{self.project.files[sort[1]].module}.{sort[2]}" if sort[0] == "class" else ""

    # Objects.

    def attribute(self, sort: tuple[Any, ...], name: str) -> Value | None:
        """An attribute of an object or class of the project; None: nothing is known of it."""
        kind, file, cls = sort
        for n, (f, c) in enumerate(self.project.bases(file, cls)):
            if kind == "super" and n == 0:
                continue
            at = self.project.methods_of(f, c).get(name)
            if at is not None:
                function = self.project.function(f, at)
                if any(d.endswith("property") for d in function.decorators):
                    return self.summary(f, at).returns
                return Value(sort=("bound", f, at))
            if (f, c, name) in self.keyed:
                return Value(UNEVEN, sort=OWN_KEYS)
            if kind == "obj" and (value := self.attributes(f, c).get(name)) is not None:
                return value
        return None

    @cached_property
    def meeting_properties(self) -> set[str]:
        """Names of properties that make collectives themselves."""
        functions = (f for of in self.project.files for f in of.functions if f.decorators and f.owner)
        asked = (f for f in functions if any(d.endswith("property") for d in f.decorators))
        return {f.name for f in asked if not known.MEETS.isdisjoint(f.words)}

    def property_of(self, sort: tuple[Any, ...], name: str) -> tuple[int, int] | None:
        """The function of such a property of an object."""
        found = self.project.method(sort[1], sort[2], name)
        return (
            found if found and any(d.endswith("property") for d in self.project.function(*found).decorators) else None
        )

    def attributes(self, file: int, cls: str) -> dict[str, Value]:
        """What the methods of a class set on `self`."""
        self._asked(file)
        key = (file, cls)
        if key not in self._attributes:
            self._attributes[key] = {}
            methods = self.project.methods_of(file, cls)
            for name in sorted(methods, key=lambda m: m != "__init__"):
                if self.project.function(file, methods[name]).sets:
                    self.summary(file, methods[name])
        return self._attributes[key]

    def set_attribute(self, file: int, cls: str, name: str, value: Value) -> None:
        """A method sets an attribute of `self`."""
        values = self._attributes.setdefault((file, cls), {})
        sort = value.sort
        if sort is not None and sort[0] == "param":
            self.given.add((file, cls, name))
        if sort is not None and sort[0] in ("param", "of", "sized"):
            value = value._replace(sort=None)
        value = value._replace(params=NO_PARAMS, dep=value.dep & (-1 if value.dep & RAISED else ~FAILED))
        values[name] = either(values[name], value) if name in values else value

    def _note_signals(self) -> None:
        """What handlers of signals set is the process's own."""
        for handler in self.handlers:
            if handler.sort is not None and handler.sort[0] in ("fn", "bound"):
                file, function = handler.sort[1], self.project.function(handler.sort[1], handler.sort[2])
                self.flags |= set(function.sets)
                targets = (t for n in nodes_in(function.body) if isinstance(n, Set) for t in n.targets)
                names = {t.path for t in targets if isinstance(t, Ref)}
                self.global_flags |= {(file, name) for name in names & self.module_values(file).keys()}

    def note_constructor(self, sort: tuple[Any, ...], given: dict[int, tuple[Expr, Value]]) -> None:
        """With what an object is made."""
        known_so_far = self.built.setdefault((sort[1], sort[2]), {})
        for i, (_, v) in given.items():
            if v.sort is not None and v.sort[0] in ("wrap", "group"):
                known_so_far[i] = Value(sort=v.sort)

    # Functions.

    def summary(self, file: int, at: int, given: frozenset[tuple[int, Value]] = frozenset()) -> Summary:
        """What a function does to its callers; `given`: to one that gives these values."""
        from unhang.lint.flow import Frame

        key = (file, at, given)
        self._asked(file)
        found = self._summaries.get(key)
        if found is not None:
            return found
        if len(self._following) >= _DEEPEST:
            return Summary()
        if at:  # the lines of the module call `main`, which would find this one half followed
            self.module_values(file)
            if key in self._summaries:
                return self._summaries[key]
        self._summaries[key] = summary = Summary()
        self._following.append(file)
        try:
            frame = Frame(self, file, at, given)
            if at == 0:
                self._begun[file] = frame
            with suppress(RecursionError):  # what was found so far stays
                frame.run(summary)
        finally:
            self._following.pop()
            if at == 0:
                self._modules[file] = self._begun.pop(file).env if file in self._begun else {}
        return summary

    def made_by(self, v: Value, method: str) -> Iterable[Effect]:
        """The collectives that a value makes when this method of it is called."""
        sort = v.sort
        if sort is None:
            return ()
        if sort[0] == "wrap":
            op = known.HIDDEN.get(sort[1], {}).get(method)
            return (Effect(op, "", (), sort[1].partition(" ")[0]),) if op else ()
        if sort[0] == "param":
            return (Effect("call", "", (), "", sort[1], method),)
        if sort[0] in ("out", "of"):
            of = sort[1]
            made = (
                Effect("backward", "", (), of.partition(" ")[0])
                if sort[0] == "out"
                else Effect("call", "", (), "", of, method)
            )
            return (made,) if method == "backward" else ()
        if sort[0] in ("fn", "bound") and method == "()":
            return [e for e in self.summary(sort[1], sort[2]).effects if e.param < 0]
        if sort[0] == "obj":
            for name in ("__call__", "forward") if method == "()" else (method,):
                target = self.project.method(sort[1], sort[2], name)
                if target is not None:
                    return [e for e in self.summary(*target).effects if e.param < 0]
        return ()

    def _threads(self) -> None:
        """A thread makes collectives of a group that other functions use too."""
        for path, file, sort, effects, found, is_pool in self.threads:
            for effect in effects:
                users = {u for u in self.groups.get((file, effect.group), ()) if not self._leads_to(sort[1:3], u)}
                if effect.op not in GROUPS and (users or not (effect.group or is_pool)):
                    way = [(p.path, p.line, p.text) for p in effect.way]
                    words = {**found.words, "collective": effect.way[-1].text}
                    self.report(path, Found(found.code, found.line, found.column, words, way))
                    break
