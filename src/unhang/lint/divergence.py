"""Two ways of two ranks, compared: which collectives one of them makes and the other does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from unhang.lint import sorts
from unhang.lint.grids import DIMENSIONS, is_agreed_in_part, reaches_further
from unhang.lint.ir import Found, Function, Ref
from unhang.lint.special import paths_in
from unhang.lint.values import (
    CHANCE,
    DATA,
    DIFFERS,
    DOUBT,
    DRAWN,
    FAILED,
    HELD,
    LOCAL,
    LOSS,
    MAYBE,
    OWN_STATE,
    RAISED,
    RANK,
    UNEVEN,
    Effect,
    Needs,
    Parts,
    Value,
)

_SAME_BATCH = re.compile(
    r"tensor|model|(?:^|[_.:])(?:tp|mp|pp|cp|sp|ep)(?=[_.(]|$|group)|pipe|seq|context|ring|ulysses|head|embed|expert"
)
_RANK_IN = re.compile(
    r"(?:\b|_)(tensor|pipeline|context|data|expert|tp|pp|cp|dp|ep)(?:_(?:model_)?parallel)?_(?:local_)?rank\b"
)
_DIMENSION = re.compile(r"(?<![a-z])(tensor|pipeline|context|data|expert|tp|pp|cp|dp|ep)(?=_)")
_IS_EMPTY = re.compile(r"(?:\)|\]) (?:== 0|< 1|> 0|>= 1|!= 0)$|^not (?:len|sum)\(|^not [\w.]+\.(?:any|numel|sum)\(\)$")
_GOES_ON = re.compile(r"except(?: Exception)?|\w+ is None|not \w+")
_OF_ALL = re.compile(r"world|default|global")
GROUPS = ("new_group", "device_mesh")
BEFORE_IT = "the condition before it"  # of a part of an expression, which has no text of its own


class Cause(Parts, frozen=True):
    """A condition, as it stands in the code. `uniform`: names in those parts of it that are the same on all ranks; `needed`: what it says of names on the other side.

    `is_told`: it names itself what makes it differ, such as the rank; else that is so by what was computed before.
    """

    value: Value
    line: int
    text: str
    path: str
    uniform: frozenset[str] = frozenset()
    needed: Needs = frozenset()
    is_told: bool = True


@dataclass(eq=False)
class Exit:
    """A way out that not every rank takes. `made`: what its branch did before; `rest`: what the others do after it.

    `depth`: how many conditions stand around the one that parts the ranks. `needs`: what names are where it is taken.
    `is_in_while`: the loop around it goes on as long as there is something to do. `loops`: how many are around it.
    `is_open`: the caller knows whether it is taken: by a parameter that is None, or not.
    `is_replaced`: somebody whom nobody knows does instead what the others do after it. `is_first`: nothing was made before it in this round of a `while` loop.
    """

    kind: str
    cause: Cause
    line: int
    column: int
    made: list[Effect]
    depth: int
    needs: Needs = frozenset()
    rest: list[Effect] = field(default_factory=list)
    is_replaced: bool = False
    is_open: bool = False
    is_first: bool = False
    is_in_while: bool = False
    loops: int = 0


@dataclass(eq=False)
class Pending:
    """Collectives under a condition on the rank, without a partner so far."""

    cause: Cause
    effects: list[Effect]


def asks_if_empty(cause: Cause) -> bool:
    """Whether a condition asks if there is anything at all: `x.shape[0] == 0`, `sum(counts) == 0`, `not len(x)`."""
    return cause.value.sort in (sorts.TEST, sorts.COUNT, sorts.LENGTH) and _IS_EMPTY.search(cause.text) is not None


def asked_of_layers(cause: Cause) -> str:
    """What a condition on a parameter asks that decides which layers run: whether it is None, empty, or of a certain worth; empty: something else."""
    if cause.value.sort == ("none test",):
        return "is None"
    return "is empty" if asks_if_empty(cause) else "is drawn" if cause.value.sort == sorts.TEST else ""


def as_drawn(cause: Cause) -> Cause:
    """The same condition, where each rank has drawn for itself what it asks for."""
    return cause._replace(value=cause.value._replace(dep=DRAWN))


def compared(here: Sequence[Effect], there: Sequence[Effect], cause: Cause) -> tuple[list[Effect], list[Effect]]:
    """What each side makes and the other does not, as far as the condition tells members of the same group apart."""
    counted = Counter(e.key for e in here), Counter(e.key for e in there)
    often = {e.key for e in here if e.is_often} & {e.key for e in there if e.is_often}
    return _alone(here, counted[1], cause, often), _alone(there, counted[0], cause, often)


def _alone(
    effects: Sequence[Effect], others: Counter[tuple[str, str, int, str]], cause: Cause, often: set[Any]
) -> list[Effect]:
    left, out = Counter(others), []
    for e in effects:
        if left[e.key] > 0:
            left[e.key] -= 1
        elif (e.is_often and e.key in often) or (
            e.hidden == "module" and (e.key in others or (*e.key[:3], "*") in others)
        ):  # as often as loops on both sides go round; a layer takes part or not
            continue
        elif e.is_sure and _is_relevant(e, cause):
            out.append(e)
    return out


def either_way(here: list[Effect], there: list[Effect]) -> list[Effect]:
    """What all ranks make where all take the same of two ways, and nobody knows which: what both make is made once."""
    left, out = Counter(e.key for e in here), list(here)
    for e in there:
        left[e.key] -= 1
        if left[e.key] < 0:
            out.append(e)
    return out


def told(effects: list[Effect]) -> list[Effect]:
    """What is told of these: the first; where callers know which of them are collectives, the first of each."""
    if not effects or effects[0].param < 0:
        return effects[:1]
    return list({e.key: e for e in reversed(effects)}.values())[::-1]


def worst_first(effects: list[Effect]) -> list[Effect]:
    """What is certain before what a parameter decides; leaving the group at the end is no collective of its own here."""
    return sorted((e for e in effects if e.op != "destroy"), key=lambda e: e.param >= 0)


@cache
def ranks_asked(text: str) -> frozenset[str]:
    """Along which dimensions of the job's grid a condition asks for the number of the rank: `get_context_parallel_rank() == 0`."""
    return frozenset(DIMENSIONS[d] for d in _RANK_IN.findall(text))


@cache
def dimensions(group: str) -> frozenset[str]:
    """Along which dimensions of the job's grid the members of a group lie, by its name."""
    name = group.rpartition(".")[2]
    if not name.partition("(")[0].endswith(("_group", "_group_gloo")):
        return frozenset()
    if re.search(r"(?<!tensor_)(?<!pipeline_)model_parallel", name):
        return frozenset(("tp", "pp")) if "expert" not in name else frozenset()
    found = {DIMENSIONS[d] for d in _DIMENSION.findall(name)}
    return frozenset(found | ({"cp"} if "(+cp)" in name else set()))


def is_replaced(function: Function, name: str) -> bool:
    """Whether a group that nobody gives is one of a part of the ranks: `if group is None: group = get_tensor_parallel_group()`."""
    bound = (n.value for n in function.bindings if Ref(name) in n.targets)
    return any(not any(_OF_ALL.search(p.lower()) for p in paths_in(value)) for value in bound)


def _is_relevant(e: Effect, cause: Cause) -> bool:
    """Whether the condition parts the members of its group. Who is a member of a smaller group may well be the condition."""
    dep = cause.value.dep & DIFFERS
    if is_agreed_in_part(cause.value):
        return e.param < 0 and not e.hidden and reaches_further(cause.value, e.group)
    if e.hidden == "module":
        if cause.value.group == sorts.OF_OTHERS:
            return False
        is_open = not dep and cause.value.sort == ("none test",)  # whether it is None, the caller knows
        return is_open or bool(dep & (CHANCE | DRAWN) or (dep & DATA and e.op in ("module", "pick")))
    if dep and not dep & ~MAYBE:
        return e.param >= 0 and e.method == "backward"
    if e.param >= 0 or e.hidden or e.op in GROUPS or not e.group:
        return True
    if dep and not dep & RANK:  # the members of a group of parts of one model have the same batch
        return e.group != "?" and (bool(dep & (LOCAL | DRAWN | FAILED)) or not _SAME_BATCH.search(e.group))
    if dep & RANK and ranks_asked(cause.text) & dimensions(e.group):
        return True  # of one part of the job's grid, of which the group has all
    return parts_members(_who_is_parted(cause.value), e.group)


def _who_is_parted(v: Value) -> str:
    """The group whose members a condition on the rank parts, `*`: all ranks, each from each other; empty: that is not known."""
    return v.group or "*" * (v.sort == sorts.DEALT)


def parts_members(parted: str, group: str) -> bool:
    """Whether a condition that parts the members of one group does so in a smaller group."""
    return bool(parted) and ((parted == "*" and group != "?") or group == parted or group.startswith(f"{parted}."))


def finding_of(
    cause: Cause, effect: Effect, path: str, other: Effect | None = None, exit_at: tuple[str, int, int] | None = None,
    is_loop: bool = False, doubt: int = 0,
) -> Found:  # fmt: skip
    """The finding that this effect is made, or missed, under this condition."""
    kind = exit_at[0] if exit_at else ""
    first, last = effect.way[0], effect.way[-1]
    line, column = (exit_at[1], exit_at[2]) if exit_at else (first.line, first.column)
    words = {
        "condition": cause.text, "caught": cause.text, "call": effect.lines[0][2],
        "collective": last.text, "line": str(first.line), "op": effect.op, "hidden": effect.hidden, "kind": kind,
        "parted": _who_is_parted(cause.value) if cause.value.dep & RANK else "", "by": "rank" * (cause.value.dep & RANK),
        "at": str(cause.line), "other": other.way[-1].text if other else "", "other_line": str(other.way[0].line) if other else "",
    }  # fmt: skip
    keyword = "the loop" if is_loop else "the condition"
    named = cause.text if cause.text == BEFORE_IT else f"{keyword} `{cause.text}`"
    way = [(cause.path, cause.line, f"{named} {how_it_differs(cause.value)}")]
    if exit_at:
        way.append((path, line, f"some ranks {kind} here"))
    way += effect.lines
    code = _code(cause, effect, other is not None, kind, is_loop)
    variant = "left" if exit_at and code in ("LNT106", "LNT115", "LNT209", "LNT210") else ""
    if code == "LNT101" and len(effect.way) == 1:
        variant = "own"
    variant = "part" if is_agreed_in_part(cause.value) else variant
    is_read = effect.op == "load" and cause.value.dep & DIFFERS == LOCAL  # what is to be read was there before
    doubt = doubt if cause.is_told and not is_read else DOUBT
    return Found(code, line, column + 1, words, way, [], False, variant, effect.calls + doubt)


def how_it_differs(v: Value) -> str:
    """Why a condition with this value is not the same on all ranks, in words."""
    if v.dep & RANK:
        return "depends on the rank"
    if v.dep & FAILED:
        return "is for a rank that has failed alone"
    if v.dep & (LOCAL | CHANCE):
        return "depends on the clock, chance, process or disk of each rank"
    if v.dep & DRAWN:
        return "depends on what each rank draws with a seed of its own"
    if is_agreed_in_part(v):
        return "was agreed on in a smaller group alone"
    if v.dep & HELD:
        return "depends on which parameters and gradients this rank has"
    return "depends on each rank's own batch" if v.dep & (DATA | MAYBE) else "comes from the caller"


def _code(cause: Cause, effect: Effect, has_other: bool, kind: str, is_loop: bool) -> str:
    dep = cause.value.dep
    if effect.hidden == "module":
        return "LNT414" if dep & (CHANCE | DRAWN) else "LNT111"
    if is_loop and dep & UNEVEN:
        return "LNT110"
    if dep & DATA and cause.value.zero is None:  # a loss that also depends on the rank is a loss
        dep &= ~RANK
    if not dep & RANK and dep & FAILED:
        if kind == "continue" and effect.op not in GROUPS and _GOES_ON.fullmatch(cause.text):
            return "LNT203"
        return "LNT209" if dep & RAISED else "LNT210"
    if not dep & RANK and (dep & OWN_STATE or (dep & CHANCE and not dep & (DATA | MAYBE))):
        return "LNT106"
    if not dep & RANK and dep & (DATA | MAYBE):
        if not dep & (LOSS | MAYBE | HELD):
            return "LNT115"
        return "LNT108" if kind in ("break", "return") else "LNT107"
    if is_loop:
        return "LNT110"
    if kind:
        return "LNT102"
    if effect.op in GROUPS:
        return "LNT104"
    if effect.op == "destroy":
        return "LNT207"
    if has_other:
        return "LNT105"
    return "LNT103" if effect.hidden or effect.param >= 0 else "LNT101"
