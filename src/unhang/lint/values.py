"""What is known of a value, what a function does to its caller, and how both are joined, also where two branches meet again."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from unhang.lint import sorts
from unhang.lint.ir import Expr, Found

if TYPE_CHECKING:
    from unhang.lint.branches import Way

# How a value may differ between ranks.
RANK = 1  # by the number of the rank
LOCAL = 2  # by the clock, chance, the process or the disk of its node
LOSS = 4  # by what a model made of the rank's own batch
OWN_BATCH = 128  # by the batch itself: where every batch has it, by nothing at all
HELD = 256  # by which parameters or gradients the rank has
DATA = LOSS | OWN_BATCH | HELD
UNEVEN = 8  # it has another length on each rank
MAYBE = 16  # by the rank's own batch, if the parameter that made it is a module
OF_DATA = DATA | MAYBE
MAYBE_NONE = 32  # it is None on some ranks, and not on others
FAILED = 64  # by an exception that one rank alone has met
LONGEST = 512  # as long as the longest sequence of this rank's batch
NONE_BY_BATCH = 2048  # it is None where the rank's own batch is no good
CHANCE = 4096  # by what this rank has drawn at random
MISSING = 8192  # it is None where the batch has no such part
DRAWN = 32768  # by what this rank has drawn with a seed of its own
TOLD = 16384  # of an exception: by what all have agreed on, so that all raise it
RAISED = 1024  # by an exception whose `raise` is in sight, under a condition that differs
DIFFERS = RANK | LOCAL | DATA | MAYBE | FAILED | RAISED | CHANCE | DRAWN
OWN_STATE = LOCAL | DRAWN
COMPUTED = ~(MAYBE_NONE | LONGEST | NONE_BY_BATCH | MISSING)  # what is left of it in what is computed from a value


class _Unknown:
    def __repr__(self) -> str:
        return "?"

    def __reduce__(self) -> str:  # there is one of it, in other processes too
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


class Place(NamedTuple):
    """A line, and what stands there."""

    path: str
    line: int
    column: int
    text: str


class Parts(msgspec.Struct, frozen=True):
    """A named tuple in all but its speed: what is followed makes and asks millions of these."""

    def _replace(self, **changes: Any) -> Self:
        return replace(self, **changes)


class Value(Parts, frozen=True):
    """`dep`: how it may differ; `params`: parameters it depends on; `group`: of which group a rank is the number, empty: of all.

    `sort`: what it is, a tuple or None, such as `("ext", "torch.distributed")`, `("fn", 3, 7)`, `("obj", 3, "Trainer")`, `("wrap", "ddp")`,
    `("out", "ddp")` for what a wrapped module returned, `("param", 0)`, `("of", 0)` for what a parameter returned,
    `("group", text)`, `("many", sort)`, `("odd", reason)` for a tensor that is unfit for a collective. `zero`: what it is as a
    condition on rank 0, where the others have the opposite. `const`: the value itself; of a wrapped module, the class or the parameter that is inside.
    """

    dep: int = 0
    params: frozenset[int] = frozenset()
    sort: Any = None
    zero: bool | None = None
    group: str = ""
    const: Any = UNKNOWN

    @property
    def kind(self) -> str:
        """The first word of its sort; empty: nothing is known of it."""
        return self.sort[0] if self.sort else ""


NO_PARAMS: frozenset[int] = frozenset()
PLAIN = Value()


_CHOSEN = {"fn", "bound", "class", "obj"}
COMPARES = {
    ("ext", f"{of}.{name}")
    for of, names in (("operator", "lt le gt ge"), ("numpy", "less less_equal greater greater_equal"), ("torch", "lt le gt ge less greater"))
    for name in names.split()
}  # fmt: skip
_MOST_CHOICES = 8


def is_of_data(v: Value) -> bool:
    """Whether the rank's own batch, and nothing else, makes it differ."""
    return v.dep > 0 and not v.dep & ~DATA


def mixed(*values: Value) -> Value:
    """What is computed from these."""
    dep, params, group = 0, NO_PARAMS, ""
    for v in values:
        dep |= v.dep
        if v.params:
            params = params | v.params
        group = group or v.group
    dep &= COMPUTED
    return Value(dep, params, None, None, group) if dep or params else PLAIN


def one_of(several: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """One of several objects, classes or functions of the project, where nobody knows which; None: there is something else among them."""
    all_sorts = [s for of in several for s in (of[1] if of[0] == "one of" else (of,))]
    distinct = tuple(dict.fromkeys(all_sorts))
    if distinct and COMPARES.issuperset(distinct):
        return distinct[0]  # whichever it is, it compares
    if not distinct or len(distinct) > _MOST_CHOICES or any(s[0] not in _CHOSEN for s in distinct):
        return None
    return distinct[0] if len(distinct) == 1 else ("one of", distinct)


def either(a: Value, b: Value) -> Value:
    """One of both, after branches that have met again. What one of them has agreed on is agreed: the other is for one rank alone."""
    if a == b:
        return a
    if a.sort == sorts.AGREED or b.sort == sorts.AGREED:
        return a if b.sort != sorts.AGREED or (a.sort == sorts.AGREED and not a.dep) else b
    const = a.const if a.const is not UNKNOWN and a.const == b.const else UNKNOWN
    both = [v.sort for v in (a, b) if v.sort is not None]
    if sorts.PADDED in both and len(both) == 2 and (a.dep | b.dep) & UNEVEN:  # filled up where it is too short
        return Value(sort=sorts.PADDED)
    sort = next(
        (s for s in (sorts.FILLED, sorts.OWN_KEYS, sorts.HALF, sorts.DRAWS, sorts.MADE) if s in both), None
    ) or (both[0] if both and both[0] == both[-1] else None)
    if sort is None:
        sort = next((s for s in both if s[0] == "many" and s[1][0] == "ragged" and sorts.COLLECTED in both), None)
    if sort is not None and sort[0] == "ragged" and len(both) < 2:  # padded in one of the branches
        sort = None
    if len(both) == 2 and both[0][0] == both[1][0] == "tuple" and len(both[0][1]) == len(both[1][1]):
        sort = ("tuple", tuple(either(x, y) for x, y in zip(both[0][1], both[1][1], strict=True)))
    if sort is None and len(both) == 2:
        sort = one_of(both)
    if sort is None and len(both) == 2 and sorts.RAW in both and {"param", "wrap"} & {both[0][0], both[1][0]}:
        sort = sorts.INNER
    if sort is None and both and sorts.RAW not in both:
        sort = next((s for s in both if s[0] == "wrap"), None)  # wrapped where the job is distributed
    return Value(
        a.dep | b.dep, a.params | b.params, sort, a.zero if a.zero == b.zero else None, a.group or b.group, const
    )


# What a call gives: the number of the parameter -> the argument, and what it is worth.
Given = dict[int, tuple[Expr, Value]]

# What a parameter (by number) or a name must be: true, false, "some", "none", or ("in" or "out", of these constants).
Wanted = bool | str | tuple[str, tuple[Any, ...]]
Needs = frozenset[tuple[int | str, Wanted]]


def is_as_wanted(const: Any, wanted: Wanted) -> bool:
    """Whether a known value is what is asked for."""
    if isinstance(wanted, tuple):
        return (const in wanted[1]) == (wanted[0] == "in")
    return (const is None) == (wanted == "none") if isinstance(wanted, str) else bool(const) == wanted


class Effect(Parts, frozen=True):
    """A collective that a call makes. `group`: empty for all ranks, `@2:name` for what parameter 2 holds.

    `param`, `method`: it is made if that parameter makes one when the method is called; -1: it is made by `op` itself.
    `way`: the calls that lead to it, the outermost first. `needs`: what parameters or names must be for it.
    `is_often`: it is made in a loop, and nobody knows how often. `ifs`: how many conditions stand around it in the functions on the way, `ifs_here`: in this one.
    `doubt`: what it is worth, in calls, that the class of an object on the way was told by its name alone.
    `is_sure`: else it may be made, by somebody who was given the function: it matches others, and is no finding. `is_order`: those who make it wait for orders.
    `after`: the condition under which some ranks alone read or write something before it, in the function that makes it.
    """

    op: str
    group: str
    way: tuple[Place, ...]
    hidden: str = ""
    param: int = -1
    method: str = ""
    needs: Needs = frozenset()
    is_sure: bool = True
    is_often: bool = False
    ifs: int = 0
    ifs_here: int = 0
    doubt: int = 0
    is_order: bool = False
    after: str = ""

    @property
    def calls(self) -> int:
        """How many calls lead to it, where conditions stand on the way, and what doubts there are."""
        return self.doubt + (len(self.way) if self.ifs > 0 else 0)

    @property
    def lines(self) -> list[tuple[str, int, str]]:
        """The calls that lead to it, as they are shown."""
        return [(p.path, p.line, p.text if p.text.endswith(")") else f"{p.text}()") for p in self.way]

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What must be equal on all ranks."""
        return self.op, self.group, self.param, self.method


Kept = tuple[int, str, str]  # an attribute of an object: the file and class, and its name
Put = tuple[str, tuple[int, int], bool]  # who puts something there by which method, and whether by the batch
# An exception, how its condition differs, and on which parameters that depends.
Raised = tuple[str, int, frozenset[int]]
NO_ROOM: Raised = ("OSError", LOCAL, NO_PARAMS)  # a file that this rank has for itself cannot be written


class Conditional(NamedTuple):
    """A finding that depends on what a caller gives: parameter `param` differs between ranks, or its `method` is a collective."""

    param: int
    method: str  # empty: it must differ; "part": what it has must; "is None": it must be None on some ranks
    found: Found
    path: str


@dataclass
class Summary:
    """What a function does, as far as its callers care. `unifies`: parameters that are equal on all ranks afterwards.

    `wraps`: parameters that are wrapped where they are; `leaves`: conditions under which a rank ends by an exception that is no failure; `raises`: failures, by name, and how
    what is asked before them differs between ranks. `keeps`: attributes of the object that it sets by what it is given.
    `marks`: attributes of what it is given; `parts`: by which others of these it decides; `resets`: those that it sets to a constant.
    `alone`: parameters that some ranks alone call, and which ranks. `puts`: containers into which it puts something, and whether by the batch alone.
    `counts`: parameters that say how often it goes round a loop in which it may meet others. `none_with`: it gives something else where one of these is None.
    `messages`: one that it sends, and one that it receives. `gives`: what a generator yields.
    """

    effects: list[Effect] = field(default_factory=list)
    returns: Value = PLAIN
    unifies: frozenset[int] = NO_PARAMS
    conditional: list[Conditional] = field(default_factory=list)
    wraps: dict[int, Value] = field(default_factory=dict)
    leaves: list[Any] = field(default_factory=list)
    raises: frozenset[Raised] = frozenset()
    keeps: dict[str, Value] = field(default_factory=dict)
    marks: dict[tuple[int, str], Value] = field(default_factory=dict)
    parts: dict[tuple[int, str], frozenset[tuple[int, str]]] = field(default_factory=dict)
    resets: frozenset[tuple[int, str]] = frozenset()
    alone: dict[int, Value] = field(default_factory=dict)
    puts: dict[Kept, bool] = field(default_factory=dict)
    counts: frozenset[int] = NO_PARAMS
    none_with: frozenset[int] = NO_PARAMS
    messages: list[Effect] = field(default_factory=list)
    gives: Value = PLAIN

    def is_empty(self) -> bool:
        """Whether it does nothing that a caller would notice."""
        told = (
            self.effects or self.conditional or self.unifies or self.wraps or self.leaves or self.raises or self.keeps
        )
        more = self.marks or self.resets or self.alone or self.puts or self.none_with or self.messages
        return not told and not more and self.returns is PLAIN


MOST_EFFECTS = 24
DOUBT = 4  # calls: a finding with a doubt counts as this much further away, more than is shown unless asked for
MOST_WAY = 6


# What can be asked for: a function, by its file and number, or what is known of a name, by its file, kind and name. The lines of a module are its function 0.
Asked = tuple[int, int] | tuple[int, str, str] | tuple[int, str, str, str]


class Report(NamedTuple):
    """A finding, the functions that found it when they were followed, and in which turn and after which root that was."""

    path: str
    found: Found
    by: set[Asked]
    when: tuple[int, int]


class Thread(NamedTuple):
    """A function that is given to a thread, or to a pool of them, with the collectives that it makes; `by`: who gives it."""

    path: str
    by: tuple[int, int]
    sort: tuple[Any, ...]
    effects: list[Effect]
    found: Found
    is_pool: bool
    when: tuple[int, int]


class Outside(NamedTuple):
    """An attribute that may part ranks, set in another file than that of its class while this root was followed."""

    root: int
    file: int
    cls: str
    name: str
    value: Value


class Learned(NamedTuple):
    """What those who follow functions have to tell each other."""

    wrapped: dict[tuple[int, str], Value]
    built: dict[tuple[int, str], dict[int, Value]]
    handlers: list[Value]
    flags: set[str]
    global_flags: set[tuple[int, str]]
    skips_layers: bool
    keyed: set[Kept]
    by_state: set[Kept]
    outside: list[Outside]
    puts: dict[Kept, set[Put]]


def joined_env(a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
    """What names are worth after two branches."""
    out = dict(b)
    for name, value in a.items():
        other = b.get(name)
        out[name] = value if other is None or other is value else either(value, other)
    return out


def mark_none(env: dict[str, Value], here: Way, there: Way, before: dict[str, Value], empty: AnySet[str]) -> None:
    """Names that are None, or empty, on some ranks from here on; what was so and is made on the other ranks now, is so no more."""
    for name, value in env.items():
        a, b, old = here.env.get(name), there.env.get(name), before.get(name)
        if a is None or b is None or a is b:
            continue
        made, zero = (a, here.cause.value.zero) if b == old else (b, there.cause.value.zero)
        if (a.const is None) != (b.const is None):
            env[name] = value._replace(dep=value.dep | MAYBE_NONE | RANK, zero=zero)
        elif name in empty and old is not None and old == PLAIN and old in (a, b) and made.dep & DIFFERS == RANK:
            env[name] = Value(UNEVEN, made.params, ("share", "side"))
        elif old is not None and old.dep & MAYBE_NONE and None not in (zero, old.zero) and zero != old.zero:
            env[name] = made._replace(dep=0, zero=None)
