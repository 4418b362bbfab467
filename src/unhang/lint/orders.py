"""What comes in another order on each rank: sets of texts and objects, the files of a folder, and what is filled in a loop over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Found, Loop, Op, Ref, calls_in
from unhang.lint.keeping import is_new_dictionary
from unhang.lint.special import has_own_order, is_numbered
from unhang.lint.values import Conditional, Effect, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def found_in_order(frame: Operators, s: Loop, over: Value, made: list[Effect]) -> None:
    """A loop over a set: texts and objects come in the order of their hashes, which each process has for itself."""
    told = [e for e in made if e.is_sure and e.hidden != "module" and e.op != "barrier"]
    own = [e for e in told if e.param < 0]
    is_param = over.kind == "param"
    if not own and not is_param:
        own = [e for e in told if e.method == "()"][:1]  # a function that was given: the caller knows what it makes
    if not own or not (is_param or has_own_order(over)) or (is_numbered(s.text) and over.kind != "listing"):
        return
    words = {"collective": own[0].way[-1].text, "over": s.text}
    variant = "listing" if over.kind == "listing" else ""
    found = Found("LNT113", s.line, 1, words, own[0].lines, variant=variant)
    if own[0].param >= 0:
        frame.later.append(Conditional(own[0].param, "()", found, frame.path))
    elif is_param:
        frame.later.append(Conditional(over.sort[1], "is set", found, frame.path))
    else:
        frame.link.report(frame.path, found)


def fill_in_order(frame: Operators, path: str, value: Value) -> None:
    """Something is put into a container in a loop over a set, or over the files of a folder: it has that order from there on."""
    kind = frame.orders[-1] if frame.orders else ""
    head, _, name = path.partition(".")
    me = frame.env.get(head) if name else None
    is_kept = me is not None and me.kind == "obj" and head == "self" and "." not in name
    if not kind or (name and not is_kept) or frame.ref(path).kind not in ("", kind) or not _is_filled_only(frame, path):
        return
    sort = sorts.SET if kind == "set" else ("listing", value.sort if value.kind in ("obj", "one of") else None)
    frame.env[path] = Value(sort=sort)
    if me is not None:
        frame.link.set_attribute(me.sort[1], me.sort[2], name, Value(sort=sort))


def _is_filled_only(frame: Operators, path: str) -> bool:
    """Whether a container begins empty, and is neither sorted nor bound anew."""
    functions = [frame.function]
    if "." in path:
        functions = [f for f in frame.source.functions if f.owner == frame.function.owner]
    bound = [v for f in functions for n in f.bindings for t, v in n.pairs() if t == Ref(path)]
    is_sorted = any(n.func == Ref(f"{path}.sort") for f in functions if "sort" in f.words for n in calls_in(f.body))
    return bool(bound) and not is_sorted and all(is_new_dictionary(v) or v == Op("seq", []) for v in bound)
