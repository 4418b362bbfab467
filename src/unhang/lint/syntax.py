"""What the rules on single lines see of a file, collected while it is lowered."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from unhang.lint.ir import Found

_WATCHED = {
    "backward", "grad", "set_detect_anomaly", "init_process_group", "setdefault", "putenv", "set_device",
    "set_device_index", "device", "cuda", "to", "load", "DataLoader", "DistributedSampler", "set_epoch",
    "checkpoint", "checkpoint_sequential", "record", "parameters", "DistributedDataParallel", "DDP",
    "all_reduce", "broadcast", "barrier", "all_gather", "all_gather_into_tensor", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "all_gather_object",
    "broadcast_object_list", "monitored_barrier", "set_start_method", "get_context",
}  # fmt: skip


class Syntax:
    """What the rules share while they see a file once, from the first line to the last."""

    def __init__(self, names: dict[str, str], data: bytes) -> None:
        self.names, self.data = names, data
        self.found: list[Found] = []
        self._starts: list[int] | None = None
        self.calls: dict[str, list[tuple[int, ast.Call]]] = {}
        self.environment: list[tuple[int, ast.AST, str, ast.expr]] = []
        self.dropped: set[int] = set()
        self.blocks: list[int] = []
        self.branches = 0
        self.certain: set[int] = set()
        self._within: dict[int, tuple[int, ...]] = {}
        self.backwards: dict[int, list[ast.Call]] = {}
        self.within_loops: list[ast.AST] = []  # the function, then loops in it
        self.of_loop: dict[int, ast.AST] = {}
        self.loops: list[tuple[int, ast.For]] = []

    # What the lowering tells.

    def call(self, function: int, node: ast.Call, name: str) -> None:
        """A call, in the function of this number."""
        if name in _WATCHED:
            self._within[id(node)] = tuple(self.blocks)
            full = self.full(node.func)
            self.calls.setdefault(full, []).append((function, node))
            if name == "backward":
                self.backwards.setdefault(function, []).append(node)
                if self.within_loops:
                    self.of_loop[id(node)] = self.within_loops[-1]
            if name in ("setdefault", "putenv") and node.args and full in ("os.environ.setdefault", "os.putenv"):
                self._environ(function, node, node.args[0], node.args[1] if len(node.args) > 1 else node.args[0])

    def statement(self, node: ast.Expr) -> None:
        """A call whose result is dropped; in no branch, it is certain."""
        self.dropped.add(id(node.value))
        if not self.branches:
            self.certain.add(id(node.value))

    def loop(self, function: int, node: ast.For) -> None:
        """A loop over what a call gives."""
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute):
            self.loops.append((function, node))
            self._within[id(node)] = tuple(self.blocks)

    def assign(self, function: int, target: ast.expr, value: ast.expr, node: ast.AST) -> None:
        """An assignment to an attribute or an item."""
        if isinstance(target, ast.Subscript):
            if self.full(target.value) == "os.environ":
                self._environ(function, node, target.slice, value)
        elif isinstance(target, ast.Attribute) and target.attr == "_DEFAULT_PG_TIMEOUT":
            self.add("LNT401", node, name=target.attr)

    def _environ(self, function: int, node: ast.AST, key: ast.expr, value: ast.expr) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.environment.append((function, node, key.value, value))
            self._within[id(node)] = tuple(self.blocks)

    def comes_before(self, a: ast.AST, b: ast.AST) -> bool:
        """Whether whoever comes to `b` has been at `a`: it stands before, in a block around."""
        outer, inner = self._within.get(id(a), ()), self._within.get(id(b), ())
        return inner[: len(outer)] == outer and getattr(a, "lineno", 0) < getattr(b, "lineno", 0)

    def are_together(self, a: ast.AST, b: ast.AST) -> bool:
        """Whether both stand in one block, so that whoever comes to one comes to the other."""
        return self._within.get(id(a)) == self._within.get(id(b))

    # What the rules use.

    def full(self, node: ast.expr) -> str:
        """The full name of a dotted name; empty: it is something else."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return f"?.{names[0]}" if names else ""
        names.append(self.names.get(node.id, node.id))
        return ".".join(reversed(names))

    def of(self, *fulls: str) -> Iterator[tuple[int, ast.Call]]:
        """All calls of these functions."""
        for full in fulls:
            yield from self.calls.get(full, ())

    def offset(self, line: int, column: int) -> int:
        """Where a place is in the bytes of the file. `column` counts bytes, as `ast` has it."""
        if self._starts is None:
            self._starts = [0]
            for part in self.data.split(b"\n"):
                self._starts.append(self._starts[-1] + len(part) + 1)
        return self._starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """From where to where it is in the bytes of the file."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def add(
        self, code: str, node: Any, edits: list[tuple[int, int, str]] | None = None, is_safe: bool = False, variant: str = "",
        **words: str,
    ) -> None:  # fmt: skip
        """Notes a finding at a node."""
        self.found.append(Found(code, node.lineno, node.col_offset + 1, words, [], edits or [], is_safe, variant))

    def without(self, call: ast.Call, keyword: ast.keyword) -> list[tuple[int, int, str]]:
        """The edit that takes a keyword out of a call, with the comma before it; none where there is a comment in between."""
        start, end = self.span(keyword)
        others = [*call.args, *call.keywords]
        before = [self.span(o)[1] for o in others if self.span(o)[1] <= start]
        after = [self.span(o)[0] for o in others if self.span(o)[0] >= end]
        cut = (max(before), end) if before else (start, min(after) if after else end)
        return [] if b"#" in self.data[cut[0] : cut[1]] else [(*cut, "")]

    def without_lines(self, node: Any) -> list[tuple[int, int, str]]:
        """The edit that takes out the lines of a statement; none where there is a comment in them, or something before it."""
        start, end = self.offset(node.lineno, 0), self.offset(node.end_lineno + 1, 0)
        is_plain = not self.data[start : start + node.col_offset].strip() and b"#" not in self.data[start:end]
        return [(start, end, "")] if is_plain and end <= len(self.data) else []

    def finish(self) -> list[Found]:
        """Asks every rule, after the last line."""
        from unhang.lint.syntax_rules import RULES

        for rule in RULES:
            rule(self)
        return self.found


def argument(node: ast.Call, name: str, at: int = -1) -> ast.expr | None:
    """The argument of this name, or at this position."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    return node.args[at] if 0 <= at < len(node.args) else None


def keyword_of(node: ast.Call, name: str) -> ast.keyword | None:
    """The keyword of this name."""
    return next((k for k in node.keywords if k.arg == name), None)


def is_true(node: ast.expr | None) -> bool:
    """Whether it is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def has_stars(node: ast.Call) -> bool:
    """Whether some arguments are not written out."""
    return any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args)


def dotted(node: ast.expr) -> str:
    """The path of a name with attributes; empty: it is something else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    names.append(node.id)
    return ".".join(reversed(names))
