"""Questions whose answers keep a finding back: whether a file can be seen half made, who takes orders, and what the caller alone knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from unhang.lint import known
from unhang.lint.ir import (
    Attr,
    Call,
    Const,
    Expr,
    Function,
    Handler,
    If,
    Leave,
    Loop,
    Op,
    Ref,
    Set,
    Stmt,
    Try,
    calls_in,
    nodes_in,
)
from unhang.lint.special import COMPARISONS, ENDS, name_of, paths_in
from unhang.lint.tensors import agrees_by_name
from unhang.lint.values import DIFFERS, RANK, Effect

if TYPE_CHECKING:
    from unhang.lint.operators import Operators

# What is given a path and has no use for what is there. Who reads alone may be the only one that has it.
_READS = re.compile(
    r"snapshot_download|hub_download|from_pretrained|load_dataset|info|warn|debug|error|print|log|exists?|is_?file|is_?dir|glob|listdir|format|join"
    r"|dirname|basename|stat|getsize|getmtime|append|add|Writer|resume|restore|split|Path|str|len|startswith|endswith"
)
_SETTINGS = re.compile(
    r"(?:\w+_)?(?:args?|cfg|conf|config|configs|opts?|options|hparams|params|settings|flags|self|cls|rank|world_size)"
)
_STOP_FILE = re.compile(r"(?:^|_)(?:stop|shutdown|abort|kill|halt|quit|exit|interrupt|preempt\w*|pause)(?:_|$)")
_WORKS = re.compile(
    r"(?:^|_)(?:open|save|load|write|read|dump|download|upload|fetch|request|urlopen|post|copy\w*|move|rmtree|rename|export|push|convert|merge|SharedMemory|mmap|connect|bind|makedirs|mkdir)(?:_|$|s$|\d)"
)


_MOST_CALLERS = 20


def is_in_race(function: Function, path: str, line: int, in_loop: bool, meets: Collection[str]) -> bool:
    """Whether one rank alone changes what is at a path, and may do so before another one asks for it on this line, or after.

    Where the ranks meet in between (`meets`: names of what makes collectives), all of them have asked before, or ask afterwards.
    """
    lines = [n.line for n in calls_in(function.body) if name_of(n) in meets]
    for node in nodes_in(function.body, Loop):  # in a loop they may take turns
        if not isinstance(node, If) or not any(known.rank_kind(p.rpartition(".")[2]) for p in paths_in(node.test)):
            continue
        for inner in nodes_in(node.body):
            if not isinstance(inner, Call) or _READS.search(name_of(inner)):
                continue
            if any(_is_at(e, path) or _is_beside(function, e, path) for e in (*inner.args, inner.func)):
                first, last = min(line, inner.line), max(line, inner.line)
                is_met = any(first < n < last for n in lines)
                if not is_met or (in_loop and all(first <= n <= last for n in lines)):
                    return True
    return False


def changes(frame: Operators, path: str, line: int) -> bool:
    """Whether what is at a path may be there for one rank, and not for another one that looks at the same line."""
    in_loop, function = frame.loops > 0, frame.function
    return bool(path) and (
        (in_loop and is_stop_file(path))
        or is_in_race(function, path, line, in_loop, frame.link.meets)
        or _is_made_after(frame, path, line)
        or _is_made_around(frame, path)
        or _is_made_by_asker(frame, path)
    )


def _is_made_after(frame: Operators, path: str, line: int) -> bool:
    """Whether the next call after this line in which ranks meet is of a function in which one rank alone makes what is at a path."""
    calls = (n for n in calls_in(frame.function.body) if n.line > line)
    node = min((n for n in calls if name_of(n) in frame.link.meets), key=lambda n: n.line, default=None)
    if node is None or not isinstance(node.func, Ref) or Ref(path) not in node.args:
        return False
    kind, *key = frame.ref(node.func.path).sort or ("",)
    if kind not in ("fn", "bound"):
        return False
    function = frame.link.project.function(*key)
    at = node.args.index(Ref(path)) + (kind == "bound" and function.is_method)
    return bool(function.parameters) and _makes_alone(function, min(at, len(function.parameters) - 1)) > 0


def _is_made_around(frame: Operators, path: str) -> bool:
    """Whether the object that is asked gives its path to a function which comes to the question, and on one rank alone makes then what is there."""
    project, function = frame.link.project, frame.function
    if not path.startswith("self.") or not function.owner:
        return False
    own = (f for f in frame.source.functions if f.owner == function.owner and f is not function)
    for node in (n for f in own for n in calls_in(f.body) if Ref(path) in n.args):
        methods = project.methods_called(name_of(node))
        if len(methods) != 1:
            continue
        file, at = methods[0][1:]
        around = project.function(file, at)
        if not around.parameters:
            continue
        made = _makes_alone(around, min(node.args.index(Ref(path)) + 1, len(around.parameters) - 1))
        leads = {f.name for f in project.files[file].functions if f.owner == around.owner and function.name in f.words}
        asked = max((n.line for n in calls_in(around.body) if name_of(n) in leads | {function.name}), default=made)
        is_met = any(asked < n.line < made for n in calls_in(around.body) if name_of(n) in frame.link.meets)
        if asked < made and not is_met:
            return True
    return False


def _is_made_by_asker(frame: Operators, path: str) -> bool:
    """Whether a function gives back the path for which it asks, and a caller has one rank alone make what is there, before the ranks meet."""
    project, function = frame.link.project, frame.function
    ends = (n for n in nodes_in(function.body) if isinstance(n, Leave) and n.kind == "return")
    if "." in path or path in function.parameters or all(n.value != Ref(path) for n in ends):
        return False
    for _, caller in project.callers_by_name(function.name)[:_MOST_CALLERS]:
        for n in caller.bindings:
            target = n.targets[0]
            if name_of(n.value) == function.name and isinstance(n.value, Call) and isinstance(target, Ref):
                later = [c for c in calls_in(caller.body) if c.line > n.line]
                given = min((c for c in later if target in c.args), key=lambda c: c.line, default=None)
                methods = project.methods_called(name_of(given)) if given is not None else []
                is_met = any(given and c.line < given.line and name_of(c) in frame.link.meets for c in later)
                if given is not None and len(methods) == 1 and not is_met:
                    makes = project.function(*methods[0][1:])
                    if makes.parameters and _makes_alone(
                        makes, min(given.args.index(target) + 1, len(makes.parameters) - 1)
                    ):
                        return True
    return False


def _makes_alone(function: Function, at: int) -> int:
    """The line where one rank alone writes in a function to what parameter `at` says, or calls another parameter, that does so perhaps; 0: there is none."""
    name = function.parameters[at].lstrip("*")
    for node in nodes_in(function.body):
        match node:
            case If(test=test, body=made) | Op(op="if", parts=[test, made, _]):
                if any(known.rank_kind(p.rpartition(".")[2]) for p in paths_in(test)):
                    calls = list(calls_in(made))
                    for n in calls:
                        is_given = isinstance(n.func, Ref) and n.func.path in function.parameters
                        if is_given or (not _READS.search(name_of(n)) and any(_is_at(e, name) for e in n.args)):
                            return n.line
    return 0


def _is_at(e: Expr, path: str) -> bool:
    if isinstance(e, Attr):
        e = e.base
    return isinstance(e, Ref) and (e.path == path or e.path.startswith(f"{path}.")) and ".parent" not in e.path


def _is_beside(function: Function, e: Expr, path: str) -> bool:
    """Whether both are made of the same folder and of a number of the same name: `out / f"step-{step}"` and `out / f"step-{best_step}"`."""
    made = [n.value for n in function.bindings if Ref(path) in n.targets]
    if len(made) != 1 or not isinstance(e, Op | Call):
        return False
    (one, number), (other, its) = _parts_of_path(made[0]), _parts_of_path(e)
    return one is not None and one == other and not number.isdisjoint(its)


def _parts_of_path(e: Expr) -> tuple[Expr | None, set[str]]:
    """The folder of a path, and the last words of the names in that of the file."""
    match e:
        case Op(op="/", parts=[folder, Op(op="str") as last]):
            pass
        case Call(func=Ref(path="os.path.join"), args=[folder, Op(op="str") as last]):
            pass
        case _:
            return None, set()
    return folder, {p.rpartition(".")[2].rpartition("_")[2] for p in paths_in(last)}


def is_stop_file(path: str) -> bool:
    """Whether somebody makes a file to stop a job, by its name: each rank looks for it at a time of its own."""
    return any(_STOP_FILE.search(p.lower()) for p in path.split("."))


def works(body: Sequence[Stmt | Expr]) -> bool:
    """Whether statements or expressions read or write something, or ask somebody for it, and leave it to others what happens if that fails."""
    names = (name_of(n) for n in nodes_in(list(body), Try) if isinstance(n, Call))
    return any(_WORKS.search(n) and n[-1] != "_" and n not in known.NAMES for n in names)  # `copy_` is of a tensor


def is_told_after(frame: Operators, handler: Handler) -> bool:
    """Whether what the handler notes is reduced or broadcast after it: the ranks skip together what one of them skips."""
    noted = {t.path for n in nodes_in(handler.body) if isinstance(n, Set) for t in n.targets if isinstance(t, Ref)}
    nodes = nodes_in(frame.function.body) if noted else ()
    later = (n for n in nodes if isinstance(n, Set | Call) and n.line > handler.line)
    for n in sorted(later, key=lambda n: (n.line, isinstance(n, Call))):
        if isinstance(n, Set) and noted & paths_in(n.value):
            noted |= {t.path for t in n.targets if isinstance(t, Ref)}
        elif isinstance(n, Call) and agrees_by_name(name_of(n)) and any(noted & paths_in(a) for a in n.args):
            return True
    return False


def takes_orders(effects: Sequence[Effect]) -> bool:
    """Whether these ranks wait in a loop for what another one tells them to do."""
    return any(e.is_order for e in effects)


def as_orders(made: Sequence[Effect]) -> list[Effect]:
    """What is made in rounds of a `while` loop: orders, if each round begins with a broadcast."""
    first = next((e for e in made if e.op != "barrier" and e.param < 0), None)
    is_told = first is not None and first.op == "broadcast" and first.ifs == first.ifs_here == made[0].ifs_here
    return [e._replace(is_order=True) for e in made] if is_told else list(made)


def asked_for_wrapper(test: Expr) -> str:
    """What a condition asks for being wrapped: where it is not, its calls keep to themselves; empty: it asks for something else."""
    match test:
        case Call(func=Ref(path="hasattr"), args=[Ref(path=path), Const(value="module")]):
            return path
        case Call(func=Ref(path="isinstance"), args=[Ref(path=path), Ref(path=cls)]) if cls.endswith(
            ("DDP", "Parallel")
        ):
            return path
    return ""


def asks_property(frame: Operators, test: Expr) -> bool:
    """Whether a condition is a property, or a function, that compares the number of this rank, or of its part, with another: `if self.stages.is_last`.

    One that gives what was kept says less: it may be so for all ranks, by a setting.
    """
    match test:
        case Op(op="not", parts=[inner]):
            return asks_property(frame, inner)
        case Op(op="and", parts=parts):
            return any(asks_property(frame, p) for p in parts)
        case Call(func=Ref(path=path), args=args):
            sort = frame.ref(path).sort
            if sort is not None and sort[0] in ("fn", "bound") and _answers_alone(frame, sort):
                return True
            if args or sort is None or sort[0] != "fn" or not _compares(frame.link.project.function(*sort[1:]).body):
                return False
            said = frame.link.summary(*sort[1:]).returns
            return said.dep == RANK and not said.group
        case Ref(path=path) if "." in path:
            owner, _, name = path.rpartition(".")
            me = frame.ref(owner)
            at = frame.link.project.method(me.sort[1], me.sort[2], name) if me.kind == "obj" else None
            function = frame.link.project.function(*at) if at is not None else None
            if at is None or function is None or not function.is_property or not _compares(function.body):
                return False
            said = frame.link.summary(*at).returns
            return said.dep == RANK and not said.group
    return False


def _answers_alone(frame: Operators, sort: tuple[Any, ...]) -> bool:
    """Whether a function says the same on all ranks but one, before anything else: `if not self.is_main: return False`."""
    body = frame.link.project.function(*sort[1:]).body
    match body[0] if body else None:
        case If(test=test, body=[Leave(kind="return", value=Const(value=bool()))]):
            said = frame.link.summary(*sort[1:]).returns
            kinds = {known.rank_kind(p.rpartition(".")[2]) for p in paths_in(test)}
            return bool(kinds & {"zero", "rank"}) and said.dep & DIFFERS == RANK and not said.group
    return False


def _compares(body: list[Stmt]) -> bool:
    match body:
        case [*_, Leave(kind="return", value=Op(op=op))]:
            return op in COMPARISONS
    return False


def is_of_caller(function: Function, test: Expr) -> bool:
    """Whether a condition asks what sort of object the caller has given, by what a function says of it."""
    given = {p.lstrip("*") for p in function.parameters if not _SETTINGS.fullmatch(p.lstrip("*"))}
    if not given:
        return False
    asked = {p for p in paths_in(test) if "." not in p and p not in function.parameters}
    if asked and "derived" not in function.notes:
        function.notes["derived"] = _derived(function.bindings, given)
    return bool(asked) and not asked.isdisjoint(function.notes["derived"])


def _derived(bindings: Sequence[Set], given: set[str]) -> set[str]:
    """Names that are bound to what calls say of these."""
    of, told = set(given), set[str]()
    for n in sorted(bindings, key=lambda n: n.line):
        targets = {t.path for t in n.targets if isinstance(t, Ref)}
        if any(_mentions(a, of) for c in calls_in(n.value) for a in c.args):
            told |= targets
            of |= targets
        elif isinstance(n.value, Ref | Op) and _mentions(n.value, of):
            of |= targets
    return told


def _mentions(e: Expr, names: set[str]) -> bool:
    return not names.isdisjoint(p.partition(".")[0] if p.endswith((".values", ".items")) else p for p in paths_in(e))


def ends_well(frame: Operators, raised: Expr) -> bool:
    """Whether an exception ends the process without a failure, by its name or by what it is made of."""
    name = raised.func if isinstance(raised, Call) else raised
    if (
        isinstance(raised, Call)
        and name == Ref("SystemExit")
        and raised.args
        and raised.args[0] not in (Const(0), Const(None))
    ):
        return False  # the launcher sees a failure
    symbol = frame.link.project.symbol_of(frame.file, name.path) if isinstance(name, Ref) else None
    bases = frame.link.project.base_names(symbol.file, symbol.name) if symbol and symbol.kind == "class" else set()
    return ENDS.search(name_of(raised)) is not None or any(ENDS.search(b) for b in bases)
