"""The whole project: what each function does, found once, when somebody asks for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from unhang.lint import known, libraries, sorts
from unhang.lint.buffers import Buffers, finds_unused
from unhang.lint.graphs import have_graphs
from unhang.lint.ir import File, Found
from unhang.lint.keeping import is_filled_by_batches, set_by_threads
from unhang.lint.makers import NO_NAMES, Makers
from unhang.lint.project import Project, Symbol
from unhang.lint.values import (
    DIFFERS,
    DRAWN,
    FAILED,
    LOCAL,
    MAYBE,
    NO_PARAMS,
    PLAIN,
    RAISED,
    UNEVEN,
    UNKNOWN,
    Asked,
    Kept,
    Outside,
    Put,
    Report,
    Summary,
    Thread,
    Value,
    either,
)

_DEEPEST = 40
_WRAPPED_BY = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"}
_SYNCS_NORMS = {"convert_sync_batchnorm", "SyncBatchNorm"}
_GATHERED_WHOLE = {"set_z3_leaf_modules", "set_z3_leaf_module"}


Followed = tuple[int, int, frozenset[tuple[int, Value]]]  # a function, and what it is given
NOTHING: frozenset[tuple[int, Value]] = frozenset()  # a function that is given nothing in particular


class Link(Makers):
    """What is known so far. `findings`: (path, code, line, column) -> what was found there."""

    def __init__(self, files: Sequence[File], contents: Mapping[str, bytes] | None = None) -> None:
        self.project = Project(files)
        self.buffers = Buffers(contents or {})
        self.closures: dict[tuple[int, int], dict[str, Value]] = {}
        self.findings: dict[tuple[str, str, int, int], Report] = {}
        self.groups: dict[tuple[int, str], set[tuple[int, int]]] = {}
        self.threads: list[Thread] = []
        self.handlers: list[Value] = []
        self.flags: set[str] = set()
        self.given: set[Kept] = set()  # attributes of objects that are what somebody gave
        self.of_first: set[tuple[int, str]] = set()  # flags of objects that the first rank alone sets
        self.dictionaries: dict[tuple[int, int, str], set[str]] = {}  # names that begin as empty dictionaries
        self.late: set[Asked] = set()  # attributes of which some have asked before it was known how they differ
        self.keyed: set[Kept] = set()  # attributes of objects that have other keys on each rank
        self.by_state: set[Kept] = set()  # into which a rank puts what its clock, memory or disk allows
        self.puts: defaultdict[Kept, set[Put]] = defaultdict(set)  # who puts something into what objects keep
        self.global_flags: set[tuple[int, str]] = set()
        self.wrapped: dict[tuple[int, str], Value] = {}
        self.without_limit: dict[tuple[str, int], Found] = {}
        self.built: dict[tuple[int, str], dict[int, Value]] = {}
        self.answered: dict[tuple[int, str], dict[int, Value | None]] = {}  # what was said of `built`
        self._summaries: dict[Followed, Summary] = {}
        self._tops: dict[tuple[int, str], tuple[Value, int]] = {}
        self._modules: dict[int, dict[str, Value]] = {}
        self._begun: dict[int, Any] = {}  # frames of the modules whose lines are being followed
        self._attributes: dict[tuple[int, str], dict[str, Value]] = {}
        self.whole_classes: set[tuple[int, str]] = set()  # classes all of whose methods have said what they set
        self.causes: dict[tuple[str, str, str, str], tuple[str, str, int, int]] = {}
        self.when = 0, 0  # the turn, and the place of the root that is being followed
        self._open: dict[Followed, None] = {}  # what is being followed now
        self._half: dict[Followed, set[Followed]] = {}  # who has asked for one that was not followed to its end
        self._twice: set[Followed] = set()
        self._following: list[Asked] = []  # the functions that are being followed now
        # Who has asked for it, and is to be followed again where it changes.
        self._used: defaultdict[Asked, set[Asked]] = defaultdict(set)
        self.outside: dict[Kept, list[Outside]] = {}  # each value once
        self.pending: list[Outside] = []  # what others have set
        self.whole = self._kept_whole(files)
        self.trains = any(n.startswith("torch.distributed") for f in files for n in f.names.values())
        self.is_parallel = any(n.startswith(libraries.PARALLEL) for f in files for n in f.names.values())
        self.wraps = any(n in known.WRAPPERS or n == "deepspeed" for f in files for n in f.names.values())
        self.wraps |= any(not _WRAPPED_BY.isdisjoint(x.words) for f in files for x in f.functions)
        self.needs_all = self.wraps and not finds_unused(files)  # layers must run on all ranks
        self.syncs_norms = any(not _SYNCS_NORMS.isdisjoint(x.words) for f in files for x in f.functions)
        self.skips_layers = False  # a module of the project runs its layers by what is in the batch
        self.asks_grads: set[Asked] = set()  # functions that ask which gradients there are
        self.has_graphs = have_graphs(files)
        self.has_replicas = libraries.have_replicas(files)
        self.has_pipes = any(n.startswith(libraries.PIPES) for f in files for n in f.names.values())
        self.callers: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def _kept_whole(self, files: Sequence[File]) -> set[str]:
        """Classes that are named where modules are told to be gathered as a whole: which of their layers run is nothing to the others."""
        told = {i for i, f in enumerate(files) for x in f.functions if not _GATHERED_WHOLE.isdisjoint(x.words)}
        return {full.rpartition(".")[2] for i in told for full in files[i].names.values()}

    def _asked(self, *what: Any) -> None:
        if self._following:
            self._used[what].add(self._following[-1])

    @cached_property
    def roots(self) -> list[tuple[int, int]]:
        """Functions that may come to a collective, by the names of what they call; all others are followed when they are asked for."""
        words, roots = {*known.WORDS, "[]"}, list[tuple[int, int]]()
        todo = dict(self.project.functions)
        for file, of in enumerate(self.project.files):
            own = {f.name for f in of.functions if not f.inside and not f.owner}
            if not own.isdisjoint(of.functions[0].words):
                todo.pop((file, 0))
                roots.append((file, 0))
        found = {*self._roots_of_themselves(), *self.project.naming(words)} & todo.keys()
        while found:
            news: set[str] = set()
            for key in sorted(found):
                function = todo.pop(key)
                news.update(function.sets)
                news.add(function.name)
                if function.owner:
                    news.add(function.owner.rpartition(".")[2])
                if function.has_context:
                    news.add("apply")
                if function.inside > 0:  # it is followed with what it is written in, and then as what it hands out
                    news.add(self.project.function(key[0], function.inside).name)
                    roots.append((key[0], function.inside))
                if function.inside <= 0 or function.name != "<lambda>":
                    roots.append(key)
            news -= words | NO_NAMES
            words |= news
            found = self.project.naming(news) & todo.keys()
        return roots

    def _roots_of_themselves(self) -> Iterator[tuple[int, int]]:
        """Functions that may come to a collective, whatever they call."""
        functions, trains = self.project.functions, self.wraps or self.trains
        filters = known.FILTERS | {  # functions that call what they are given: a layer, perhaps
            f.name for f in functions.values()
            if not f.owner and f.inside == 0 and not set(f.parameters).isdisjoint(f.words)
        }  # fmt: skip
        asked = re.compile(rb"\.(?:%s)(?![a-z_])" % "|".join(sorted(self.meeting_properties)).encode())
        for key, f in functions.items():
            is_layer = trains and f.name == "forward" and not filters.isdisjoint(f.words)
            draws = trains and f.owner and not known.DRAWS.isdisjoint(f.words)
            asks = (self.meeting_properties and asked.search(bytes(f.raw))) or self.takes_number(f)
            if f.is_generator or f.name == "__iter__" or is_layer or draws or asks:
                yield key

    @cached_property
    def meets(self) -> set[str]:
        """Names of calls in which ranks meet: collectives, and functions that make some."""
        words, todo = set(known.MEETS), list(self.project.functions.values())
        while found := [f for f in todo if not words.isdisjoint(f.words) and f.inside <= 0]:
            words |= {f.name for f in found} - {"<module>", "__init__", "__call__", "forward", "main"}
            todo = [f for f in todo if words.isdisjoint(f.words)]
        return words

    def report(self, path: str, found: Found) -> None:
        """Something is found in a function that is being followed."""
        if known.is_of_test(path, found.code):
            return
        if found.code in ("LNT111", "LNT414"):
            self.skips_layers |= found.code == "LNT111"
            if not self.needs_all and not (self.syncs_norms and self._has_norms(path)):
                return
        self.keep(Report(path, found, {self._following[-1] if self._following else (-1, -1)}, self.when))

    def _has_norms(self, path: str) -> bool:
        """Whether layers of a file normalize over the batch: over that of all ranks, where they are made to."""
        functions = next((f.functions for f in self.project.files if f.path == path), [])
        return any(w.startswith("BatchNorm") for f in functions for w in f.words)

    def keep(self, report: Report) -> None:
        """Keeps a finding, once: the first of those with the same cause."""
        path, found = report.path, report.found
        key = (path, found.code, found.line, found.column)
        if found.words.get("at"):
            key = self.causes.setdefault((path, found.code, found.words["at"], found.words.get("condition", "")), key)
        kept = self.findings.setdefault(key, report)
        kept.by.update(report.by)
        if report.found.calls < kept.found.calls:  # the one without a doubt
            self.findings[key] = kept._replace(found=report.found)

    def makers(self) -> set[str]:
        """Names at the top of files that may lead to collectives: functions, and classes by their methods."""
        functions = [self.project.function(file, at) for file, at in self.roots if at]
        return {f.owner.partition(".")[0] or f.name for f in functions if f.inside <= 0}

    # Names.

    def top(self, file: int, name: str) -> Value:
        """What a name means at the top of a file."""
        key = (file, name)
        if key in self._tops:
            value, by = self._tops[key]
        else:
            symbol = self.project.find(file, name)
            # The module whose lines say it.
            by = file if symbol is None else symbol.file if symbol.kind == "var" else -1
            self._tops[key] = PLAIN, by
            self._tops[key] = value, _ = self._of_symbol(symbol) if symbol else self._bound(file, name), by
            if file in self._begun:  # it may be bound later
                del self._tops[key]
        if by >= 0:
            self._asked(by, 0)
        return value

    def _bound(self, file: int, name: str) -> Value:
        """What a name means that is bound by the lines of the module, or by nobody."""
        from unhang.lint.special import value_of_name

        own = self.module_values(file).get(name)
        if own is not None:
            return Value(LOCAL, sort=sorts.TEST) if (file, name) in self.global_flags else own
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
        self._asked(file, 0)
        self._begin(file)
        return self._begun[file].env if file in self._begun else self._modules.setdefault(file, {})

    def _begin(self, file: int) -> None:
        """Follows the lines of a module, if nobody has begun to."""
        if file not in self._modules and file not in self._begun:
            self.summary(file, 0)

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
        kind = v.kind
        if kind == "ext":
            return str(v.sort[1])
        if kind not in ("fn", "class"):
            return ""
        _, file, of = v.sort
        function = self.project.function(file, of) if kind == "fn" else None
        if function is not None and (function.owner or function.inside > 0):
            return ""
        return f"{self.project.files[file].module}.{of if function is None else function.name}"

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
                if function.is_property:
                    return self.summary(f, at).returns
                return Value(sort=("bound", f, at))
            if kind == "obj":
                self._asked(f, "attribute", c, name)
            if (f, c, name) in self.by_threads:
                return self.by_threads[f, c, name]
            if (f, c, name) in self.keyed or (f, c, name) in self.by_state:
                return Value(UNEVEN | LOCAL * ((f, c, name) in self.by_state), sort=sorts.OWN_KEYS)
            if self.when[0] and is_filled_by_batches(self, (f, c, name)):
                return Value(sort=sorts.FILLED)
            if kind == "obj" and (value := self.attributes(f, c).get(name)) is not None:
                is_half = value.const is not UNKNOWN and self._is_bound_later(f, c, name)
                return value._replace(const=UNKNOWN) if is_half else value
        return None

    def _is_bound_later(self, file: int, cls: str, name: str) -> bool:
        """Whether a method that binds an attribute anew has not been followed to its end."""
        for at in self.project.methods_of(file, cls).values():
            key = (file, at, NOTHING)
            if name in self.project.function(file, at).sets and (key in self._open or key not in self._summaries):
                return True
        return False

    @cached_property
    def by_threads(self) -> dict[Kept, Value]:
        """Attributes of objects that a thread sets, at a time of its own."""
        return dict(set_by_threads(self.project))

    def attributes(self, file: int, cls: str) -> dict[str, Value]:
        """What the methods of a class set on `self`."""
        self._asked(file, "attributes", cls)
        key = (file, cls)
        if key not in self.whole_classes:
            self.whole_classes.add(key)
            self._attributes.setdefault(key, {})
            methods = self.project.methods_of(file, cls)
            for name in sorted(methods, key=lambda m: m != "__init__"):
                if self.project.function(file, methods[name]).sets:
                    self.summary(file, methods[name])
        return self._attributes[key]

    def set_attribute(self, file: int, cls: str, name: str, value: Value) -> None:
        """A method sets an attribute of `self`."""
        if self._following:
            self._used[self._following[-1]].add((file, "attributes", cls))
        values = self._attributes.setdefault((file, cls), {})
        if value.kind == "param":
            self.given.add((file, cls, name))
        if value.kind in ("param", "of", "sized", "bare", "half bare"):
            value = value._replace(sort=None)
        value = value._replace(params=NO_PARAMS, dep=value.dep & (-1 if value.dep & RAISED else ~FAILED))
        old = values.get(name)
        values[name] = value if old is None else either(old, value)
        key: Asked = (file, "attribute", cls, name)
        if value.dep & DRAWN and not (old is not None and old.dep & DRAWN) and self._used.get(key):
            self.late.add(key)
        parts = value.dep & DIFFERS & ~MAYBE or (value.kind in ("wrap", "group"))
        if parts and self._following and self._following[-1][0] != file:
            before = self.outside.setdefault((file, cls, name), [])
            if all(one.value != value for one in before):
                before.append(Outside(self.when[1], file, cls, name, value))

    def _is_news(self, one: Outside) -> bool:
        """Whether an attribute is another one than was known here."""
        own = self._attributes.get((one.file, one.cls), {}).get(one.name)
        return own is None or either(own, one.value) != own

    def is_flag(self, file: int, path: str) -> bool:
        """Whether the handler of a signal sets what is at a path."""
        return (file, path) in self.global_flags or (path.startswith("self.") and path[5:] in self.flags)

    # Functions.

    def summary(self, file: int, at: int, given: frozenset[tuple[int, Value]] = NOTHING) -> Summary:
        """What a function does to its callers; `given`: to one that gives these values."""
        from unhang.lint.flow import Frame

        key = (file, at, given)
        self._asked(file, at)
        found = self._summaries.get(key)
        if found is not None:
            if key in self._open:  # those that are followed within it learn half of it
                keys = list(self._open)
                self._half.setdefault(key, set()).update(keys[keys.index(key) + 1 :])
            return found
        if len(self._following) >= _DEEPEST:
            return Summary()
        if at:  # the lines of the module call `main`, which would find this one half followed
            self._begin(file)
            if key in self._summaries:
                return self._summaries[key]
        self._summaries[key] = summary = Summary()
        self._open[key] = None
        self._following.append((file, at))
        try:
            frame = Frame(self, file, at, given)
            if at == 0:
                self._begun[file] = frame
            with suppress(RecursionError):  # what was found so far stays
                frame.run(summary)
        finally:
            self._following.pop()
            del self._open[key]
            for one in self._half.pop(key, set()) - self._twice - self._open.keys():  # followed when asked for again
                self._twice.add(one)
                self._summaries.pop(one, None)
            if at == 0:
                self._modules[file] = self._begun.pop(file).env if file in self._begun else {}
        return summary

    def environment(self, file: int, at: int) -> dict[str, Value]:
        """What the function around this one has bound so far."""
        self._used[file, self.project.function(file, at).inside].add((file, at))
        return self.closures.get((file, at), {})
