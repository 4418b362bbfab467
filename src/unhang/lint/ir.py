"""What is kept of a file: its functions in a small language of calls, conditions, assignments and ways out.

The worker that parses a file makes it, the cache holds it as bytes, and the flow is followed on it. What can matter to no
rule is not there: text, types, arithmetic. Bodies stay bytes until somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

VERSION = 9


class Node(msgspec.Struct, array_like=True, gc=False, tag_field="t"):
    """A part of the language."""


class Ref(Node, tag=0):
    """A name, or attributes of a name: `self.net.module`."""

    path: str


class Const(Node, tag=1):
    """A plain value."""

    value: str | int | float | bool | None


class Call(Node, tag=2):
    """A call. `names`: one for each keyword, `**` as empty text; they go with the last of `args`."""

    func: Expr
    args: list[Expr]
    names: list[str]
    line: int
    column: int

    def given(self, name: str, at: int = -1) -> Expr | None:
        """The argument of this name, or at this position."""
        plain = len(self.args) - len(self.names)
        if name in self.names:
            return self.args[plain + self.names.index(name)]
        return self.args[at] if 0 <= at < plain else None


class Op(Node, tag=3):
    """What is made of its parts: `and`, `or`, `not`, a comparison, `seq`, `[]`, `:`, `if`, `comp`, `+` for all other operators."""

    op: str
    parts: list[Expr]


class Attr(Node, tag=4):
    """An attribute of what is no name: `f().x`."""

    base: Expr
    name: str


class Fn(Node, tag=5):
    """A function that is written here: a lambda, or a `def` inside a function. `at`: its number in the file."""

    at: int


class Do(Node, tag=10):
    """An expression that stands for itself."""

    value: Expr
    line: int


class Set(Node, tag=11):
    """An assignment. `adds`: it keeps what was there (`+=`)."""

    targets: list[Expr]
    value: Expr
    line: int
    adds: bool = False

    def pairs(self) -> Iterator[tuple[Expr, Expr]]:
        """What is bound to what: `a, b = {}, {}` binds both."""
        for target in self.targets:
            yield target, self.value
            if not isinstance(target, Op) or not isinstance(self.value, Op) or {target.op, self.value.op} != {"seq"}:
                continue
            if len(target.parts) == len(self.value.parts):
                yield from zip(target.parts, self.value.parts, strict=True)


class If(Node, tag=12):
    """A condition; also a `match`, whose cases are its branches. `text`: how it reads."""

    test: Expr
    body: list[Stmt]
    orelse: list[Stmt]
    line: int
    text: str


class Loop(Node, tag=13):
    """`for` with a target, `while` without one."""

    target: Expr | None
    over: Expr
    body: list[Stmt]
    orelse: list[Stmt]
    line: int
    text: str


class Handler(Node, tag=14):
    """`names`: what it catches, by last names; empty: everything."""

    names: list[str]
    body: list[Stmt]
    line: int


class Try(Node, tag=15):
    """`try`, with all its parts."""

    body: list[Stmt]
    handlers: list[Handler]
    orelse: list[Stmt]
    final: list[Stmt]
    line: int


class With(Node, tag=16):
    """Context managers: each with its name, or None."""

    items: list[Expr]
    targets: list[Expr | None]
    body: list[Stmt]
    line: int


class Leave(Node, tag=17):
    """`kind`: return, break, continue, raise, yield."""

    kind: str
    value: Expr | None
    line: int
    column: int


Expr = Ref | Const | Call | Op | Attr | Fn
Stmt = Do | Set | If | Loop | Try | With | Leave
_BODY = msgspec.msgpack.Decoder(list[Stmt])
_ENCODER = msgspec.msgpack.Encoder()


class Function(msgspec.Struct, array_like=True, dict=True):
    """A function, a lambda, or the lines of the module itself (`<module>`).

    `owner`: its class, by its name in the file; `inside`: the number of the function it is written in, -1: none.
    `words`: the last names of what it calls. `sets`: attributes of `self` that it assigns. `defaults`: of the last parameters.
    `annotated`: parameters that are said to be wrapped modules, with the names of the wrappers.
    `is_spawned`: torch.multiprocessing starts it on each rank, and gives it the number of the rank first.
    """

    name: str
    line: int
    owner: str
    inside: int
    parameters: list[str]
    defaults: list[Expr | None]
    decorators: list[str]
    words: list[str]
    sets: list[str]
    is_generator: bool
    raw: msgspec.Raw
    is_spawned: bool = False
    annotated: dict[str, str] = {}

    @cached_property
    def body(self) -> list[Stmt]:
        """Its statements."""
        return _BODY.decode(self.raw)

    @cached_property
    def bindings(self) -> list[Set]:
        """Its assignments, in the order of `nodes_in`."""
        return [n for n in statements_in(self.body) if isinstance(n, Set)]

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What is asked of it again and again, kept by those who ask."""
        return {}

    def default_of(self, i: int) -> Expr | None:
        """What parameter `i` is where nobody gives it; None: it has to be given."""
        at = i - (len(self.parameters) - len(self.defaults))
        return self.defaults[at] if 0 <= at < len(self.defaults) else None

    @property
    def is_property(self) -> bool:
        """Whether it runs where somebody asks for an attribute."""
        return any(d.endswith("property") for d in self.decorators)

    @property
    def is_method(self) -> bool:
        """Whether its first parameter is the object."""
        return bool(self.owner) and "staticmethod" not in self.decorators

    @property
    def has_context(self) -> bool:
        """Whether it is a part of an autograd function: torch calls it, with a context."""
        return bool(self.owner) and self.parameters[:1] == ["ctx"]


class Found(msgspec.Struct, array_like=True):
    """What a rule found. Columns count characters from 1; `way`: the places that lead to it, the cause first; `words`: for its card.

    `edits`: start, end and text, in bytes of the file, that mend it; `is_safe`: they change nothing else.
    `calls`: how many calls lead to the collective, its own among them; 0: no condition stands on that way.
    """

    code: str
    line: int
    column: int
    words: dict[str, str] = {}
    way: list[tuple[str, int, str]] = []
    edits: list[tuple[int, int, str]] = []
    is_safe: bool = False
    variant: str = ""
    calls: int = 0


class File(msgspec.Struct, array_like=True):
    """A file. `names`: what its imports bind, to full names; `classes`: name -> base names; `quiet`: line -> codes, empty: all.

    `fields`: of classes, in their order: what a data class or a named tuple is made of.
    `reason`: why it could not be read, empty: it could. `is_parsed`: it was worth a look.
    """

    path: str
    module: str = ""
    lines: int = 0
    is_parsed: bool = False
    reason: str = ""
    names: dict[str, str] = {}
    functions: list[Function] = []
    classes: dict[str, list[str]] = {}
    fields: dict[str, list[str]] = {}
    found: list[Found] = []
    quiet: dict[int, list[str]] = {}


# The fields of each kind of node in which there are others; and those of statements in which there are statements.
_PARTS: dict[type, tuple[str, ...]] = {
    Ref: (), Const: (), Fn: (), Call: ("func", "args"), Op: ("parts",), Attr: ("base",), Do: ("value",), Set: ("targets", "value"),
    If: ("test", "body", "orelse"), Loop: ("target", "over", "body", "orelse"), Handler: ("body",),
    Try: ("body", "handlers", "orelse", "final"), With: ("items", "targets", "body"), Leave: ("value",),
}  # fmt: skip
_BLOCKS = {
    kind: tuple(n for n in names if n in ("body", "handlers", "orelse", "final")) for kind, names in _PARTS.items()
}


def nodes_in(part: object, left_out: type[Node] = Fn, below: Mapping[type, tuple[str, ...]] = _PARTS) -> Iterator[Node]:
    """Every part of a body, the outer ones first; what is in a node of the kind `left_out` is not among them. `below`: the fields to go into."""
    todo: list[Any] = [part]
    while todo:
        one = todo.pop()
        kind = type(one)
        if kind is list:
            todo += one
        elif (parts := below.get(kind)) is not None:
            yield one
            if kind is not left_out:
                for name in parts:
                    todo.append(getattr(one, name))


def statements_in(part: object) -> Iterator[Node]:
    """Every statement of a body, in the order of `nodes_in`, and every handler."""
    return nodes_in(part, below=_BLOCKS)


def calls_in(part: object) -> Iterator[Call]:
    """Every call in a body or an expression, the outer ones first."""
    return (n for n in nodes_in(part) if isinstance(n, Call))


def each_of(given: Leave) -> Loop:
    """`yield from items` is a loop that yields each of them."""
    one = Ref("each")
    assert given.value is not None
    return Loop(one, given.value, [Leave("yield", one, given.line, given.column)], [], given.line, "each")


def packed(body: list[Stmt]) -> msgspec.Raw:
    """A body as bytes."""
    return msgspec.Raw(_ENCODER.encode(body))


EncodedFile = msgspec.msgpack.Decoder(File)
encode = _ENCODER.encode
