"""What makes collectives when it is called, and with what objects are made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from unhang.lint import known, libraries, sorts
from unhang.lint.ir import Call, Const, Expr, Function, Node, Op, Ref, calls_in, nodes_in
from unhang.lint.project import Project
from unhang.lint.samplers import NUMBER, deals_out
from unhang.lint.special import is_own_seed, name_of, paths_in
from unhang.lint.unnamed import UNNAMED
from unhang.lint.values import (
    DIFFERS,
    LOCAL,
    MAYBE_NONE,
    RANK,
    UNEVEN,
    Effect,
    Given,
    Kept,
    Raised,
    Summary,
    Value,
    either,
)

if TYPE_CHECKING:
    from unhang.lint.names import Names

NO_NAMES = {"<module>", "<lambda>", ""}
_ALL_SEEDED = ("torch", "random", "numpy")
_SEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("torch.manual_seed", "manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "manual_seed_all"), ("torch",)),
    **dict.fromkeys(("set_seed", "seed_everything"), _ALL_SEEDED), "random.seed": ("random",),
}  # fmt: skip
_SEEDS = {name.rpartition(".")[2] for name in _SEEDED}
_MOST_CALLERS = 20
_OF_MAKING = {"__init__", "__getattr__", "__repr__", "__dir__"}
_ON_CPU = {"Accelerator": "cpu", "TrainingArguments": "use_cpu"}
_DDP = {"DistributedDataParallel", "DDP"}
_SHARDS = re.compile(rb"(?i)fsdp|fully_shard|deepspeed|model_?parallel")
_ZERO, _STAGE = b"zero_optimization", b"zero_stage"


class Makers:
    """The part of the link that knows who makes collectives."""

    project: Project
    has_pipes: bool
    by_state: set[Kept]
    wrapped: dict[tuple[int, str], Value]
    built: dict[tuple[int, str], dict[int, Value]]
    answered: dict[tuple[int, str], dict[int, Value | None]]

    def _asked(self, *what: Any) -> None:
        raise NotImplementedError

    def summary(self, file: int, at: int, given: frozenset[tuple[int, Value]] = frozenset()) -> Summary:
        """What a function does to its callers; `given`: to one that gives these values."""
        raise NotImplementedError

    def maker(self, several: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Of several functions or methods, the first that makes collectives."""
        makers = (s for s in several if any(e.param < 0 for e in self.summary(s[1], s[2]).effects))
        return next(makers, several[0])

    def made_by(self, v: Value, method: str) -> Iterable[Effect]:
        """The collectives that a value makes when this method of it is called."""
        sort = v.sort
        if sort is None:
            return ()
        if sort[0] == "one of":
            return next(filter(None, (list(self.made_by(Value(sort=s), method)) for s in sort[1])), [])
        if sort[0] == "wrap":
            op = known.HIDDEN.get(sort[1], {}).get("()" if method == "wrapped" else method)
            return (Effect(op, "", (), sort[1].partition(" ")[0]),) if op else ()
        if sort[0] == "param":
            return (Effect("call", "", (), "", sort[1], method),)
        if sort[0] == "ext":  # a collective of a library is given: in which group it will be, nobody knows
            made = known.collective(sort[1]) if method == "()" else None
            return (Effect(made.op, "?", ()),) if made is not None else ()
        if sort[0] == "out":
            is_told = method == "backward" and sort[1] != "replica"
            return (Effect("backward", "", (), sort[1].partition(" ")[0]),) if is_told else ()
        if sort[0] == "of":
            return (Effect("call", "", (), "", sort[1], method),) if method == "backward" else ()
        if sort[0] in ("fn", "bound") and method == "()":
            return [e for e in self.summary(sort[1], sort[2]).effects if e.param < 0 and e.op not in UNNAMED]
        if sort[0] == "obj":
            for name in ("__call__", "forward") if method == "()" else (method,):
                target = self.project.method(sort[1], sort[2], name)
                if target is not None:
                    return [e for e in self.summary(*target).effects if e.param < 0 and e.op not in UNNAMED]
        return ()

    def raised_by(self, v: Value, method: str) -> set[Raised]:
        """What a method of an object raises by what differs, whoever calls it."""
        target = self.project.method(v.sort[1], v.sort[2], method) if v.kind == "obj" else None
        return {r for r in self.summary(*target).raises if not r[2]} if target is not None else set()

    def wrapper_of(self, file: int, name: str) -> Value | None:
        """The wrapped module that a function of this file keeps under this name."""
        self._asked(file, "wrapped", name)
        return self.wrapped.get((file, name))

    def given_to(self, file: int, cls: str, parameter: int) -> Value | None:
        """The wrapped module or the group with which objects of a class are made."""
        self._asked(file, "built", cls)
        given = self.built.get((file, cls), {}).get(parameter)
        self.answered.setdefault((file, cls), {})[parameter] = given
        return given

    def note_constructor(self, sort: tuple[Any, ...], names: Sequence[str], given: Given) -> None:
        """With what an object is made."""
        for i, (_, v) in given.items():
            if v.kind in ("wrap", "group"):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(sort=v.sort)
            elif v.sort == sorts.DRAWS or (is_own_seed(v) and i < len(names) and "seed" in names[i]):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(v.dep & (RANK | LOCAL), sort=v.sort)
            elif v.sort == sorts.OWN_PATH or (v.sort is None and v.dep & DIFFERS == LOCAL):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(v.dep & LOCAL, sort=v.sort)
            elif v.dep & MAYBE_NONE and v.zero is not None:  # None on the first rank alone, or on the others
                so_far = self.built.setdefault((sort[1], sort[2]), {})
                so_far[i] = Value(v.dep & (RANK | MAYBE_NONE), zero=v.zero)
            elif v.dep & DIFFERS == RANK and v.zero is not None and not v.group and self._is_made_once(sort):
                self.built.setdefault((sort[1], sort[2]), {})[i] = Value(RANK, zero=v.zero)  # `Log(rank == 0)`
            elif v.kind in ("obj", "one of"):
                given_so_far = self.built.setdefault((sort[1], sort[2]), {})
                given_so_far[i] = either(given_so_far.get(i, Value(sort=v.sort)), Value(sort=v.sort))

    @cached_property
    def is_on_cpu(self) -> bool:
        """Whether a trainer or an accelerator is told to stay on the CPU, where neither FSDP nor DeepSpeed shards anything."""
        if self.names_shards:
            return False
        functions = (f for name in _ON_CPU for _, f in self.project.callers_by_name(name))
        made = [n for f in functions for n in calls_in(f.body) if name_of(n) in _ON_CPU]
        return bool(made) and all(n.given(_ON_CPU[name_of(n)]) == Const(True) for n in made)

    def _is_made_once(self, sort: tuple[Any, ...]) -> bool:
        """Whether one line of the project alone makes objects of a class."""
        cls = str(sort[2])
        calls = (n for _, f in self.project.callers_by_name(cls) for n in calls_in(f.body))
        return sum(name_of(n) == cls for n in calls) == 1

    def is_made_as(self, file: int, at: int, receiver: str) -> bool:
        """Whether somebody makes an object of the class of a method under the name of its receiver: `layout = NodeLayout(8)`, and elsewhere `self.layout.wait()`."""
        cls, last = self.project.function(file, at).owner.rpartition(".")[2], receiver.rpartition(".")[2]
        bound = (n for _, f in self.project.callers_by_name(cls)[:_MOST_CALLERS] for n in f.bindings)
        made = (t for n in bound if isinstance(n.value, Call) and name_of(n.value) == cls for t in n.targets)
        return any(isinstance(t, Ref) and t.path.rpartition(".")[2] == last for t in made)

    def is_used_as(self, frame: Names, file: int, at: int, receiver: str) -> bool:
        """Whether all that a class, or a function, calls on a receiver are methods of the class of one method, and several of them."""
        if self.project.by_name(self.project.function(file, at).name) is not None:
            return True  # nobody else would give that name
        if not self.summary(file, at).effects:
            return False
        called = frame.function.notes.get("called") or frame.function.notes.setdefault("called", _called_in(frame))
        names, cls = called.get(receiver, ()), self.project.function(file, at).owner
        return len(names) > 1 and all(self.project.method(file, cls, name) is not None for name in names)

    def by_last_word(self, receiver: str, name: str) -> tuple[int, int] | None:
        """The one method of the project of this name, if its class ends with the word of the receiver: `pool.give` of a `BlockPool`."""
        methods = self.project.methods_called(name)
        if len(methods) != 1:
            return None
        word = receiver.rpartition(".")[2].rpartition("_")[2]
        is_one = (
            len(methods) == 1 and len(word) > 3 and self.project.function(*methods[0][1:]).owner.endswith(word.title())
        )
        return methods[0][1:] if is_one else None

    def kept_by_state(self, path: str) -> Value | None:
        """What an attribute is of what nobody knows, but is called like its class, if a rank puts something there as its own memory, disk or clock allows; None: something else."""
        owner, _, name = path.rpartition(".")
        word = owner.rpartition(".")[2].rpartition("_")[2].title()
        found = [c for _, c, kept in self.by_state if kept == name and len(word) > 3 and c.endswith(word)]
        return Value(UNEVEN | LOCAL, sort=sorts.OWN_KEYS) if len(found) == 1 else None

    @cached_property
    def meeting_properties(self) -> set[str]:
        """Names of properties that make collectives themselves, or in what they call."""
        found = {name for _, name in self.of_libraries}
        for of in self.project.files:
            properties = [f for f in of.functions if f.decorators and f.owner and f.is_property]
            makers = {f.name for f in of.functions if f.inside <= 0 and not known.MEETS.isdisjoint(f.words)}
            words = known.MEETS | makers - NO_NAMES if properties else known.MEETS
            found |= {f.name for f in properties if not words.isdisjoint(f.words)}
        return found

    @cached_property
    def of_libraries(self) -> dict[tuple[str, str], str]:
        """Properties of objects of libraries, by what these are called and their names: which collectives they make."""
        modules = {n.partition(".")[0] for of in self.project.files for n in of.names.values()}
        told = (libraries.PROPERTIES[m] for m in modules & libraries.PROPERTIES.keys())
        return {(owner, name): op for owner, name, op in told}

    @cached_property
    def drops_out(self) -> bool:
        """Whether modules leave out by chance what they compute, and each rank has a seed of its own for that."""
        functions = self.project.functions.values()
        leaves_out = any(word.startswith(("Dropout", "dropout")) for f in functions for word in f.words)
        return leaves_out and "torch" in self.own_seeds

    @cached_property
    def own_seeds(self) -> set[str]:
        """The libraries to whose generator of the process each rank gives a seed of its own."""
        return set().union(*(_seeds_by_rank(self.project.functions[key]) for key in self.project.naming(_SEEDS)))

    def takes_number(self, function: Function) -> bool:
        """Whether a function is given the number of a loader that the project deals out itself."""
        return NUMBER in function.parameters and self.deals_out

    @cached_property
    def deals_out(self) -> bool:
        """Whether the project gives each rank its share of the loaders of an evaluation: some may have nothing for this one."""
        return deals_out(self.project)

    @cached_property
    def names_shards(self) -> bool:
        """Whether the project names what leaves each rank a part of the gradients alone."""
        return any(_SHARDS.search(bytes(f.raw)) for f in self.project.functions.values())

    @cached_property
    def reduces_all(self) -> bool:
        """Whether DDP waits for the gradients of all parameters, as far as the code says."""
        return any(not _DDP.isdisjoint(f.words) for f in self.project.functions.values()) and not self.names_shards

    @cached_property
    def parts_every_layer(self) -> bool:
        """Whether a setting in the code has DeepSpeed shard the parameters of each layer (ZeRO's stage 3): whoever runs one meets the others."""
        told = (f for f in self.project.functions.values() if (b := bytes(f.raw)) and (_ZERO in b or _STAGE in b))
        return any(_sets_stage(n) for f in told for n in nodes_in(f.body))

    def shares_seed(self, sort: tuple[Any, ...]) -> bool:
        """Whether an object is a loader of torch, in a project of data pipes."""
        return self.has_pipes and "torch.utils.data.DataLoader" in self.project.base_names(sort[1], sort[2])

    def wrapper_like(self, sort: tuple[Any, ...]) -> str:
        """The sort of wrapper that a class of the project is, which adds nothing but how it is made; empty: it is none."""
        own = self.project.methods_of(sort[1], sort[2]).keys()
        bases = self.project.base_names(sort[1], sort[2]) if own <= _OF_MAKING else set()
        return next((known.WRAPPERS[b] for b in bases if known.WRAPPERS.get(b) in ("ddp", "fsdp")), "")

    @cached_property
    def norms_meet(self) -> bool:
        """Whether norms over the batch are made to be over that of all ranks."""
        words = {w for f in self.project.functions.values() for w in f.words}
        return "convert_sync_batchnorm" in words and any(w.startswith("BatchNorm") for w in words)

    def is_evaluated(self, function: Function) -> bool:
        """Whether a function, or one that leads to it by its name, puts modules into the mode in which nothing is left out by chance."""
        if "evaluated" not in function.notes:
            seen, todo = {function.name}, [function]
            while todo and "eval" not in todo[-1].words and len(seen) <= _MOST_CALLERS:
                callers = [f for _, f in self.project.callers_by_name(todo.pop().name) if f.name not in seen]
                seen |= {f.name for f in callers}
                todo[:0] = callers
            function.notes["evaluated"] = bool(todo)
        return bool(function.notes["evaluated"])


def _called_in(frame: Names) -> dict[str, set[str]]:
    """What a function, and the others of its class, call on each receiver."""
    called: dict[str, set[str]] = {}
    for f in frame.source.functions:
        if f is frame.function or (f.owner and f.owner == frame.function.owner):
            for n in calls_in(f.body):
                of, _, last = n.func.path.rpartition(".") if isinstance(n.func, Ref) else ("", "", "")
                called.setdefault(of, set()).add(last)
    return called


def _sets_stage(n: Node) -> bool:
    """`"zero_optimization": {"stage": 3}`, `DeepSpeedPlugin(zero_stage=3)`."""
    match n:
        case Op(op="dict", parts=parts) if Const("stage") in parts:
            at = parts.index(Const("stage")) + len(parts) // 2
            return at < len(parts) and parts[at] == Const(3)
        case Call():
            return n.given("zero_stage") == Const(3)
    return False


def _seeds_by_rank(function: Function) -> set[str]:
    """The libraries to whose generator a function gives a seed by the rank: `torch.manual_seed(seed + rank)`."""
    seeded = set[str]()
    for n in calls_in(function.body):
        of = _SEEDED.get(name_at(n.func).removeprefix("np.").removeprefix("numpy.")) if name_of(n) in _SEEDS else None
        of = ("numpy",) if of == ("random",) and name_at(n.func).startswith(("np.", "numpy.")) else of
        named = set().union(*map(paths_in, n.args)) if of else set[str]()
        named |= {p for b in function.bindings if named & {*map(name_at, b.targets)} for p in paths_in(b.value)}
        if any(known.rank_kind(p.rpartition(".")[2]) in ("rank", "local") for p in named):
            seeded |= {*(of or ())}
    return seeded


def name_at(e: Expr) -> str:
    """The name that an expression is; empty: it is something else."""
    return e.path if isinstance(e, Ref) else ""
