"""What is known while a function is followed: names, conditions, collectives so far; and what names and attributes are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unhang.lint import known, sorts
from unhang.lint.arguments import parameter_value
from unhang.lint.divergence import Cause, Exit, Pending
from unhang.lint.ir import Call, Found, Ref
from unhang.lint.special import (
    is_a_rank,
    is_in_flight,
    value_of_name,
)
from unhang.lint.values import (
    DATA,
    DOUBT,
    DRAWN,
    LOCAL,
    LONGEST,
    LOSS,
    MOST_WAY,
    NO_PARAMS,
    OWN_BATCH,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Kept,
    Needs,
    Place,
    Raised,
    Value,
)

if TYPE_CHECKING:
    from unhang.lint.link import Link

_TENSOR_FACTS = {"shape", "dtype", "device", "ndim", "requires_grad", "size", "dim", "training", "is_cuda"}
_OF_TOKENS = {"logits", "hidden_states", "last_hidden_state"}  # of an output: as long as the longest sequence


class Names:
    """What is known while a function is followed, and what names are worth in it.

    `later`: findings that callers decide; `is_special`: it is followed for one of them, for what leaves it and how often it goes round.
    """

    def __init__(self, link: Link, file: int, at: int, given: frozenset[tuple[int, Value]] = frozenset()) -> None:
        self.link, self.file, self.at = link, file, at
        self.source = link.project.files[file]
        self.path, self.function = self.source.path, self.source.functions[at]
        self.env: dict[str, Value] = {}  # names, and attributes that were set here
        self.outer = link.environment(file, at)
        self.effects, self.messages = list[Effect](), list[Effect]()  # a message `is_often`: by some ranks alone
        self.later: list[Conditional] = []
        # Where it is.
        self.conditions: list[tuple[Cause, int, int]] = []  # with how many effects and loops there were
        self.needs: Needs = frozenset()
        self.line_now = 0  # of the statement that is followed
        self.loops = self.no_sync = self.uneven_is_fine = self.is_leaving = 0
        self.guesses = 0  # how many calls around are of objects whose class was told by a name alone
        self._endless = self._uneven_loops = self._fills = self.loops_over_own = 0
        self.filtered = self.evens = 0  # loops over a share out of which items drop; over one that is even
        self._round, self._leaves_together, self._unsure, self._no_exits = -1, False, 0, 0
        self._over_parameters: list[int] = []
        self.orders: list[str] = []  # of the loops around over what has an order of its own: a set, or a listing
        self._implied: list[int] = []
        self.rounds: list[Value] = []  # what the conditions of these are worth
        self._limits: list[frozenset[str]] = []  # names in the conditions of the `while` loops around
        self._line, self._is_empty = 0, False  # of the assignment
        # What was met so far.
        self.ways_out: list[Exit] = []
        self.raises: set[Raised] = set()  # by what differs
        self.refuses: list[tuple[str, list[str]]] = []  # exceptions, and the conditions before them
        self.caught: dict[str, int] = {}  # by the last handler, of what is raised in sight: how that differs
        self.forwards = self.own_reads = 0  # of wrapped modules; of files that this rank has for itself
        self.alone_before = ""  # the condition under which some ranks alone have read or written something
        self.stayed, self.left_by = list[Cause](), NO_PARAMS  # under what others have returned, or by which parameters
        self.of_first: set[str] = set()
        self.uniform: set[str] = set()
        self.last_given: list[Value] = []  # what the call was given that was followed last
        self.has_limit = False
        self.graphs: dict[str, tuple[Any, ...]] = {}  # names of what an unknown call has made of a wrapped module
        self.handles: list[tuple[str, Call]] = []
        self._pending: list[Pending] = []
        self._uneven_found: list[tuple[Found, Effect]] = []  # unless those that are done wait for the others
        self._stops: list[tuple[str, int, list[Cause]]] = []
        self._empty, self._filled = set[str](), set[str]()
        # What goes into the summary.
        self.unified: set[int] = set()
        self.wraps: dict[int, Value] = {}
        self.keeps: dict[str, Value] = {}
        self.alone: dict[int, Value] = {}  # parameters that some ranks alone call
        self.puts: dict[Kept, bool] = {}
        self.marked: set[str] = set()
        self.parts: dict[str, frozenset[tuple[int, str]]] = {}  # of the callers' objects, by which these are set
        self.is_bare_where_empty = False  # it gives back a constant where there is nothing in what it is given
        self._returned, self._given_out = list[Value](), list[Value]()  # by a generator
        self._none_returned: list[tuple[bool, Value]] = []
        self._told_by = self.counts = self._none_with = NO_PARAMS
        self._passes_on: list[int] = []
        self.untils: list[tuple[Any, ...]] = []  # the loops around over such a generator
        self._until: tuple[Any, ...] | None = None  # the setting by which a generator of a share is not endless
        self._goes_on: tuple[Any, ...] | None = None  # the setting by which any other one goes round for ever
        self._is_uneven_round, self._ends_as = False, tuple[Any, ...]()  # in a round of its endless loop; which share
        self._ends_unevenly = self._ends_by_rank = self._never_ends = False
        self._bind_parameters(given)

    def _bind_parameters(self, given: frozenset[tuple[int, Value]]) -> None:
        names = self.function.parameters
        for i, name in enumerate(names):
            self.env[name.lstrip("*")] = parameter_value(self.link, self.file, self.function, i, name)
        for i, value in given:
            self.env[names[i]] = value
        self.fixed = {names[i] for i, value in given if value.const is not UNKNOWN}
        self.is_special = bool(given)
        self._given = dict(self.env)

    @property
    def hands_out_work(self) -> bool:
        """Whether this file gives tasks to a pool."""
        return any("submit" in f.words for f in self.source.functions)

    # What was met so far.

    def parameter(self, name: str) -> int:
        """The number of the parameter that a name still is; -1: it is none, or was bound anew."""
        names = self.function.parameters
        return names.index(name) if name in names and self.env.get(name) is self._given.get(name) else -1

    def emit(self, effect: Effect) -> None:
        """A collective is made here."""
        if len(effect.way) == 1 and not effect.hidden and effect.param < 0:
            self.link.groups.setdefault((self.file, effect.group), set()).add((self.file, self.at))
        effect = effect._replace(
            needs=effect.needs | self.needs, is_sure=effect.is_sure and not self._unsure,
            ifs_here=len(self.conditions) - self._no_exits, doubt=DOUBT if self.guesses else effect.doubt,
            after=effect.after or self.alone_before,
        )  # fmt: skip
        self.effects.append(effect)
        for way_out in self.ways_out:
            if not way_out.is_replaced:
                way_out.rest.append(effect)

    def is_under(self, dep: int) -> bool:
        """Whether this line is under a condition that differs so."""
        return any(c.value.dep & dep for c, *_ in self.conditions)

    def is_alone(self) -> bool:
        """Whether one rank alone comes here: what it decides is compared with the others where they part."""
        return any(c.value.dep & RANK and c.value.zero for c, *_ in self.conditions)

    def is_ordered(self) -> bool:
        """Whether a round of the `while` loop around it began with a broadcast: all ranks do what it says, and fail alike."""
        return 0 <= self._round < len(self.effects) and self.effects[self._round].op == "broadcast"

    def found(self, code: str, at: Call | Place, effect: Effect | None = None, variant: str = "", **words: str) -> None:
        """A rule speaks here, of this collective perhaps."""
        way, calls = ([], 0) if effect is None else (effect.lines, effect.calls)
        words |= {"collective": effect.way[-1].text} if effect is not None else {}
        self.link.report(self.path, Found(code, at.line, at.column + 1, words, way, variant=variant, calls=calls))

    def _cut(self, mark: int) -> list[Effect]:
        cut = self.effects[mark:]
        del self.effects[mark:]
        return cut

    def leave_with(self, causes: Sequence[Cause], node: Call) -> None:
        """A function that is called here may raise: the rank that leaves by it is compared with those that go on."""
        for cause in causes if not (self._unsure or self._no_exits) else ():
            self.ways_out.append(Exit("raise", cause, node.line, node.column, [], len(self.conditions), self.needs))

    def place(self, node: Call, name: str) -> Place:
        """Where a call stands."""
        text = node.func.path if isinstance(node.func, Ref) else name
        return Place(self.path, node.line, node.column, text or name or "call")

    def _in_forward(self) -> bool:
        """Whether this is the forward of a module, in a project that trains on several ranks."""
        return (self.link.wraps or self.link.trains) and self.function.name == "forward" and bool(self.function.owner)

    def _runs_layers(self) -> bool:
        """Whether this is a part of the forward of a module: that itself, or what it calls."""
        if self._in_forward() or not (self.link.wraps or self.link.trains) or not self.function.owner:
            return self._in_forward()
        forward = self.link.project.method(self.file, self.function.owner, "forward")
        return forward is not None and self.function.name in self.link.project.function(*forward).words

    def _layer(self, node: Call, layer: str, name: str) -> None:
        """A layer runs in the forward of a module: sharded or not, its parameters take part in collectives."""
        if self._runs_layers() and self.function.owner not in self.link.whole:
            is_one_of = not isinstance(node.func, Ref) or "." not in node.func.path  # an expert, say
            is_for_more = "pick" if is_one_of else "part"  # of a method, which may be called for something else
            op = "module" if self._in_forward() else is_for_more
            self.emit(Effect(op, "", (self.place(node, name),), "module", -1, layer))

    def _gathers(self, node: Call, v: Value) -> bool:
        """Whether a module runs one of its layers in a method beside its forward, where that gathers the parameters of the layer from all ranks."""
        of_me = isinstance(node.func, Ref) and node.func.path.startswith("self.") and self.link.parts_every_layer
        if not of_me or self._runs_layers() or not self.link.project.is_module(self.file, self.function.owner):
            return False
        return v.kind == "layer" or (v.kind == "obj" and self.link.project.is_module(v.sort[1], v.sort[2]))

    def layers(self, v: Value, method: str) -> list[Effect]:
        """A layer that runs, where one is given to a function that calls it."""
        if method != "()" or not self._in_forward() or self.function.owner in self.link.whole:
            return []
        is_layer = v.kind == "layer" or (v.kind == "obj" and self.link.project.is_module(v.sort[1], v.sort[2]))
        return [Effect("module", "", (), "module", -1, str(v.sort[-1]))] if is_layer else []

    # What names are worth.

    def ref(self, path: str) -> Value:
        """The value of a name, or of an attribute of one."""
        env = self.env
        found = env.get(path)
        if found is not None:
            return found
        head, dot, rest = path.partition(".")
        value = env.get(head) or self._from_outside(head) or self.link.top(self.file, head)
        if path.endswith(("args.should_save", "args.should_log")):  # of the arguments of transformers
            return Value(RANK, zero=True)
        if not dot or path.lower().endswith("lora.rank"):  # of a matrix
            return value if not dot else PLAIN
        prefix = head
        for name in rest.split("."):
            if name in self.link.meeting_properties and value.kind in ("", "param", "wrap"):
                self.ask_alike(prefix, name)
            prefix = f"{prefix}.{name}"
            value = env.get(prefix) or self.attribute(value, name)
        if value is PLAIN and self.link.by_state and (kept := self.link.kept_by_state(path)) is not None:
            return kept
        owner = path.rpartition(".")[0]
        if value.sort == ("rank",) and not (value.group or head == owner or known.is_of_job(owner)):
            return value._replace(group=owner)  # the rank in `self.gang`
        return value

    def _from_outside(self, name: str) -> Value | None:
        """A name of the function around this one; its parameters are not ours."""
        value = self.outer.get(name)
        if value is None or not (value.params or value.kind in ("param", "of")):
            return value
        return value._replace(params=NO_PARAMS, sort=None if value.kind in ("param", "of") else value.sort)

    def attribute(self, v: Value, name: str) -> Value:
        """An attribute of a value."""
        v = v if v.sort != sorts.INNER else v._replace(sort=None)
        kind, sort = v.kind, v.sort
        if sort == sorts.AGREED:
            return v
        if name in self.link.flags and not self.link.project.methods_called(name):
            return Value(LOCAL, sort=sorts.TEST)
        if name == "module" and kind in ("", "wrap", "param", "raw", "obj"):
            kept = self.link.attribute(sort, name) if kind == "obj" else None
            return kept if kept is not None and kept.kind == "wrap" else Value(sort=sorts.RAW)
        if kind == "one of":
            return self.of_one(sort[1], name)
        if kind == "ext":
            full = f"{sort[1]}.{name}"
            return Value(sort=("ext", full)) if not is_a_rank(name, full) else value_of_name(name)
        if kind == "mod":
            return self.link.of_module(sort[1], name)
        if kind in ("obj", "super", "class") and (found := self._of_object(sort, name)) is not None:
            return found
        if name in _TENSOR_FACTS:
            if name == "shape" and sort == sorts.OF_DRAWN:
                return Value(DRAWN, sort=sorts.LENGTH)
            if name == "shape" and (v.dep & DATA or v.params) and kind not in ("out", "of"):
                part = LOSS if sort in (None, sorts.EXCHANGED) and v.dep & OWN_BATCH else 0
                sort = sorts.LENGTH if kind != "ragged" else None
                return Value(v.dep & DATA | part, v.params, sort, group=v.group)
            return Value(0, v.params) if v.params else PLAIN
        if kind in ("out", "of"):
            return v._replace(dep=v.dep | LONGEST) if name in _OF_TOKENS else v
        if kind == "param" and known.rank_kind(name) is None:
            return self.link.wrapper_of(self.file, name) or Value(v.dep & DATA, v.params)
        if name == "T":
            return Value(v.dep, v.params, ("odd", "transposed"))
        by_name = value_of_name(name)
        if by_name.dep or (by_name.sort is not None and not v.dep and not v.params):
            return by_name
        kept = self.link.wrapper_of(self.file, name) if kind in ("", "obj") and not v.dep else None
        return kept or (Value(v.dep & ~(RANK | UNEVEN), v.params) if v.dep or v.params else PLAIN)

    def _of_object(self, sort: tuple[Any, ...], name: str) -> Value | None:
        """An attribute of an object or class of the project; None: nothing is known of it."""
        if name in self.link.meeting_properties:
            self.ask(sort, name)
        found = self.link.attribute(sort, name)
        if found is None:
            is_apply = sort[0] == "class" and name == "apply"  # of an autograd function
            at = self.link.project.method(sort[1], sort[2], "forward") if is_apply else None
            has_context = at is not None and self.link.project.function(*at).has_context
            return Value(sort=("bound", *at)) if at is not None and has_context else None
        if name in _TENSOR_FACTS:
            return found._replace(dep=found.dep & ~DATA)
        is_open = found.sort is None and not found.dep and is_in_flight(name)
        return Value(LOCAL, sort=sorts.TEST) if is_open else found

    def of_one(self, several: tuple[tuple[Any, ...], ...], name: str) -> Value:
        """An attribute of one of several objects; of methods, the one that makes collectives."""
        found = [v for s in several if (v := self.attribute(Value(sort=s), name)).sort is not None or v.dep]
        bound = [v.sort for v in found if v.kind == "bound"]
        if bound:
            return Value(sort=self.link.maker(bound))
        return found[0] if found else PLAIN

    def wrap_in_place(self, path: str, wrapped: Value) -> None:
        """A module is wrapped where it is: whoever gave it to us has a wrapped one from here on."""
        old = self.ref(path)
        if old.kind == "param" and "." not in path:
            self.wraps[old.sort[1]] = wrapped
        self.env[path] = wrapped
        me, name = self.env.get("self"), path.removeprefix("self.")
        if me is not None and me.kind == "obj" and name != path and "." not in name and not self.is_special:
            self.link.set_attribute(me.sort[1], me.sort[2], name, wrapped)

    def ask(self, sort: tuple[Any, ...], name: str) -> None:
        """A property of an object is asked for, which makes collectives, perhaps."""
        at = self.link.project.method(sort[1], sort[2], name)
        if at is not None and self.link.project.function(*at).is_property:
            self._ask_for(at, name)

    def ask_alike(self, owner: str, name: str) -> None:
        """A property is asked for of what nobody knows, which is called like its class."""
        at = self.link.project.by_receiver(owner, name, is_exact=True)
        op = self.link.of_libraries.get((owner.rpartition(".")[2].lstrip("_"), name))
        if at is not None:
            self.ask(("obj", at[0], self.link.project.function(*at).owner), name)
        elif op is not None:
            self.emit(Effect(op, "", (Place(self.path, self.line_now, 0, f"{owner}.{name}"),)))

    def _ask_for(self, at: tuple[int, int], text: str) -> None:
        for e in self.link.summary(*at).effects:
            if e.param < 0 and not e.needs:
                way = (Place(self.path, self.line_now, 0, text), *e.way)[:MOST_WAY]
                self.emit(e._replace(way=way, ifs=e.ifs + e.ifs_here))

    def go_through(self, v: Value) -> None:
        """The items of an object of the project are asked for; it may make collectives for each."""
        at = self.link.project.method(v.sort[1], v.sort[2], "__iter__") if v.kind == "obj" else None
        if at is not None:
            self._ask_for(at, "__iter__()")
