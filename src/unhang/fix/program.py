"""A file of the program as text, as a tree, and as the edits that are made in it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import NamedTuple

from unhang.analyze.program.trees import covers, last_name

_LARGEST = 2_000_000
Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = list[ast.stmt]


LEAVES = ast.Return | ast.Continue | ast.Break


class NoDiff(Exception):
    """Why no diff is made, as a sentence without a capital and a full stop."""


class Said(NamedTuple):
    """What a change does: one of DIFFS, and a sentence without a full stop."""

    does: str
    text: str


class Edit(NamedTuple):
    """Bytes from `start` to `end` that become `new`."""

    start: int
    end: int
    new: str


class Program:
    """One file. Positions are bytes, as those of the tree are.

    Raises:
        NoDiff: it cannot be read, or is no Python.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.data = path.read_bytes()
        except OSError as error:
            raise NoDiff(f"{path} cannot be read ({error.strerror})") from None
        if len(self.data) > _LARGEST:
            raise NoDiff(f"{path} is larger than {_LARGEST // 1_000_000} MB")
        try:
            self.data.decode()
            self.tree = ast.parse(self.data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NoDiff(f"{path} is not Python that this version can read") from None
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.newline = "\r\n" if b"\r\n" in self.data else "\n"
        self.parents = {c: n for n in ast.walk(self.tree) for c in ast.iter_child_nodes(n)}
        self.edits: list[Edit] = []

    # Positions.

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Where it begins; a decorated function at its first decorator."""
        first = _head(node)
        at: int = self._starts[first.lineno - 1] + first.col_offset
        return at if first is node else at - 1  # before the @

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Where it ends."""
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """As it stands there."""
        return self.data[self.start(node) : self.end(node)].decode()

    def whole_line(self, node: ast.stmt) -> str:
        """As it stands there, with the comment behind it."""
        return self.data[self.start(node) : self._starts[node.end_lineno or node.lineno]].decode().rstrip()

    def indent(self, node: ast.stmt) -> str:
        """The white space before the line of a statement."""
        line = self.data[self._starts[node.lineno - 1] :]
        return re.match(rb"[ \t]*", line)[0].decode()  # type: ignore[index]

    def is_alone(self, node: ast.stmt) -> bool:
        """Whether no other statement shares its lines."""
        before = self.data[self._starts[node.lineno - 1] : self.start(node)]
        after = self.data[self.end(node) : self._starts[node.end_lineno or node.lineno]]
        return not before.strip() and (not after.strip() or after.lstrip().startswith(b"#"))

    # The tree.

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around it within its function, innermost first, the function (or module) last."""
        while (node := self.parents[node]) and not isinstance(node, Function | ast.Module | ast.Lambda | ast.ClassDef):
            yield node
        yield node

    def is_elif(self, node: ast.expr | ast.stmt) -> bool:
        """Whether it is an `elif`."""
        parent = self.parents[node]
        is_only = isinstance(node, ast.If) and isinstance(parent, ast.If) and parent.orelse == [node]
        return is_only and self.text(node).startswith("elif")

    def function_of(self, node: ast.AST) -> ast.AST:
        """The function or module that it stands in."""
        return list(self.around(node))[-1] if node in self.parents else self.tree

    def top_of(self, node: ast.AST) -> ast.stmt:
        """The statement of the module that it stands in."""
        while self.parents[node] is not self.tree:
            node = self.parents[node]
        assert isinstance(node, ast.stmt)
        return node

    def block_of(self, node: ast.stmt) -> Block:
        """The statements among which it stands."""
        parent = self.parents[node]
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        return next(b for b in blocks if isinstance(b, list) and node in b)

    def statements_at(self, line: int) -> list[ast.stmt]:
        """The simple statements on a line, and blocks that stand on it whole."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and covers(n, line)]
        return [
            n for n in found if not any(isinstance(c, ast.stmt) and covers(c, line) for c in ast.iter_child_nodes(n))
        ]

    def names(self, within: ast.AST | None = None) -> set[str]:
        """All names and attributes in the file, or in a part of it."""
        nodes = list(ast.walk(within or self.tree))
        words = {n.id for n in nodes if isinstance(n, ast.Name)}
        words |= {n.name for n in nodes if isinstance(n, Function | ast.ClassDef)}
        return words | {a.arg for a in nodes if isinstance(a, ast.arg)}

    # Changes.

    def once_bound(self, value: ast.expr) -> ast.expr:
        """What a name gets in the one line of its function that sets it, if that always runs before: all that read the name then go by the same."""
        function = self.function_of(value)
        given = [a.arg for a in ast.walk(function) if isinstance(a, ast.arg)]
        sets = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        sets = [n for n in sets if isinstance(value, ast.Name) and n.id == value.id and n.id not in given]
        at = self.parents[sets[0]] if len(sets) == 1 else None
        if not (isinstance(at, ast.Assign) and at.targets == sets and at.lineno < value.lineno):
            return value
        return at.value if any(node in self.block_of(at) for node in self.around(value)) else value

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Puts text in the place of a node."""
        self.edits.append(Edit(self.start(node), self.end(node), new))

    def insert_at(self, at: int, text: str) -> None:
        """Puts text at a position."""
        self.edits.append(Edit(at, at, text))

    def remove_lines(self, node: ast.stmt) -> None:
        """Takes a statement out, with its lines.

        Raises:
            NoDiff: another statement shares them.
        """
        if not self.is_alone(node):
            raise NoDiff(f"line {node.lineno} holds several statements")
        first, last = _head(node).lineno - 1, node.end_lineno or node.lineno
        self.edits.append(Edit(self._starts[first], self._starts[last], ""))

    def insert_before(self, node: ast.stmt, text: str) -> None:
        """Puts whole lines before the line of a statement."""
        self.insert_at(self._starts[_head(node).lineno - 1], text)

    def insert_after(self, node: ast.stmt, text: str) -> None:
        """Puts whole lines after the last line of a statement."""
        self.insert_at(self._starts[node.end_lineno or node.lineno], text)

    def follow_with(self, node: ast.stmt, statement: str) -> None:
        """Puts a statement of one line after another one, on its line where others share that."""
        if self.is_alone(node) and getattr(self.parents[node], "lineno", 0) != node.lineno:
            self.insert_after(node, f"{self.indent(node)}{statement}{self.newline}")
        else:
            self.insert_at(self.end(node), f"; {statement}")

    def moved(self, node: ast.stmt, indent: str) -> str:
        """The lines of a statement with another indentation.

        Raises:
            NoDiff: a text over several lines stands in it, which would change.
        """
        if any(isinstance(n, ast.Constant | ast.JoinedStr) and n.lineno != n.end_lineno for n in ast.walk(node)):
            raise NoDiff("the code to be moved contains a string that spans several lines")
        old = self.indent(node)
        end = self._starts[node.end_lineno or node.lineno] if self.is_alone(node) else self.end(node)
        lines = self.data[self.start(node) : end].decode().splitlines()
        out = [lines[0], *(line.removeprefix(old) for line in lines[1:])]
        return "".join(f"{indent if i == 0 or line else ''}{line}{self.newline}" for i, line in enumerate(out))

    def result(self) -> bytes:
        """The file with its edits.

        Raises:
            NoDiff: they overlap, or the file would be no program any more.
        """
        text, last = self.data, len(self.data) + 1
        for number, edit in sorted(enumerate(self.edits), key=lambda e: (e[1].start, e[1].end, e[0]), reverse=True):
            if edit.end > last:
                raise NoDiff("the places to change overlap")
            text = text[: edit.start] + self.edits[number].new.encode() + text[edit.end :]
            last = edit.start
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            raise NoDiff("the changed file would not be valid Python") from None
        return text


def _head(node: ast.expr | ast.stmt) -> ast.expr | ast.stmt:
    """What its first line begins with: itself, or a decorator."""
    first: ast.expr | ast.stmt = min([node, *getattr(node, "decorator_list", ())], key=lambda n: n.lineno)
    return first


def holds(statements: Iterable[ast.AST], kinds: type | tuple[type, ...] | UnionType) -> bool:
    """Whether there is a node of these kinds in them."""
    return any(isinstance(n, kinds) for s in statements for n in ast.walk(s))


def unified(name: str, before: bytes, after: bytes) -> str:
    """The change as a diff that `git apply` and `patch -p1` take."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    parts = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(p if p.endswith("\n") else p + "\n\\ No newline at end of file\n" for p in parts)


def dotted(node: ast.AST) -> str:
    """`self.net` of a name with attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def loads(nodes: Iterable[ast.AST]) -> set[str]:
    """Names with attributes that are read, the longest of each place."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        name = dotted(node) if isinstance(getattr(node, "ctx", None), ast.Load) else ""
        if name:
            found.add(name)
        else:
            todo += ast.iter_child_nodes(node)
    return found


def binds(node: ast.AST) -> set[str]:
    """Names with attributes that are set."""
    found = {dotted(n) for n in ast.walk(node) if isinstance(getattr(n, "ctx", None), ast.Store | ast.Del)}
    found |= {n.name for n in ast.walk(node) if isinstance(n, Function | ast.ClassDef)}
    found |= {
        (a.asname or a.name).partition(".")[0]
        for n in ast.walk(node)
        if isinstance(n, ast.Import | ast.ImportFrom)
        for a in n.names
    }
    return found - {""}


def calls_in(node: ast.AST) -> list[ast.Call]:
    """Calls that are made when it runs, the outermost first; not those in a lambda or a function."""
    found, todo = [], [node]
    while todo:
        one = todo.pop(0)
        if isinstance(one, ast.Call):
            found.append(one)
        if one is node or not isinstance(one, ast.Lambda | Function | ast.ClassDef):
            todo += ast.iter_child_nodes(one)
    return found


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return last_name(call.func)


_IS_THERE = ("exists", "isfile", "isdir", "is_file", "is_dir")


def takes_what_it_finds(node: ast.If | ast.IfExp | ast.While) -> bool:
    """Whether a test asks if something is there, and what it leads to takes that: a rank that does not have it cannot go there."""
    asks = any(isinstance(n, ast.Call) and called(n) in _IS_THERE for n in ast.walk(node.test))
    asks |= any(isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.In | ast.IsNot) for n in ast.walk(node.test))
    body: list[ast.AST] = [*node.body] if isinstance(node.body, list) else [node.body]
    used = [
        {d for n in part for m in ast.walk(n) if (d := dotted(m))} - {"self", "os", "os.path"}
        for part in ([node.test], body)
    ]
    return asks and bool(used[0] & used[1])
