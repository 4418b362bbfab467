"""Variables that Python code sets: `os.environ[...] = `, setdefault, update, putenv, and `env=` dictionaries. Nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from unhang.read.environment.settings import MAX_VALUE, Assignment, Settings, unquoted
from unhang.read.environment.tables import in_scope

MAX_PARSED = 4 << 20
_LINE = re.compile(
    r"environ(?:\[\s*[\"'](?P<a>\w+)[\"']\s*\]\s*=(?!=)|\.setdefault\(\s*[\"'](?P<b>\w+)[\"']\s*,)\s*(?P<value>[^#\n]*)"
)
_READ = re.compile(r"(?:getenv\(|environ\.get\()\s*[\"'](\w+)[\"']")
_ENV_NAMES = re.compile(r"(?:\w*_)?env(?:_vars?|ironment|iron|s)?(?:_\w+)?", re.IGNORECASE)
_ENV_KEYS = ("env", "env_vars", "environment", "env_variables", "environment_variables")


def read_python(text: str, path: str = "") -> Settings:
    """The variables that a Python file sets, and those that it reads itself."""
    try:
        if len(text) > MAX_PARSED:
            raise ValueError("too large to parse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        found = _Finder()
        found.visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _by_lines(text, path)
    ordered = sorted(found.assignments, key=lambda a: a.line or 0)
    return Settings(path, "python", tuple(ordered), frozenset(found.mentions))


class _Finder(ast.NodeVisitor):
    """Collects assignments and reads."""

    def __init__(self) -> None:
        self.assignments: list[Assignment] = []
        self.mentions: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                self._add(_text_of(target.slice), node.value, node.lineno)
            elif isinstance(target, ast.Name) and _ENV_NAMES.fullmatch(target.id):
                self._add_dictionary(node.value)
            elif isinstance(target, ast.Subscript) and _ENV_NAMES.fullmatch(getattr(target.value, "id", "")):
                self._add(_text_of(target.slice), node.value, node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("setdefault", "putenv") and len(node.args) == 2 and (name == "putenv" or _is_environ(owner)):
            self._add(_text_of(node.args[0]), node.args[1], node.lineno, is_default=name == "setdefault")
        elif name == "update" and _is_environ(owner):
            for argument in node.args:
                self._add_dictionary(argument)
            for keyword in node.keywords:
                self._add(keyword.arg or "", keyword.value, keyword.value.lineno)
        elif node.args and (name == "getenv" or (name in ("get", "pop") and _is_environ(owner))):
            self.mentions |= {n for n in [_text_of(node.args[0])] if name != "pop" and in_scope(n)}
        for keyword in node.keywords:
            if keyword.arg in _ENV_KEYS:
                self._add_dictionary(keyword.value)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and _is_environ(node.value) and in_scope(_text_of(node.slice)):
            self.mentions.add(_text_of(node.slice))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and _text_of(key) in _ENV_KEYS:
                self._add_dictionary(value)
        self.generic_visit(node)

    def _add_dictionary(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            for keyword in node.keywords:
                self._add(keyword.arg or "", keyword.value, keyword.value.lineno)
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if key is not None:
                self._add(_text_of(key), value, key.lineno)

    def _add(self, name: str, value: ast.expr, line: int, is_default: bool = False) -> None:
        if not in_scope(name) or any((a.name, a.line) == (name, line) for a in self.assignments[-64:]):
            return
        text = _constant(value)
        expression = "" if text is not None else ast.unparse(value)[:200]
        self.assignments.append(Assignment(name, text, line, expression, is_default))


def _is_environ(node: ast.expr | None) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constant(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float) and node.value is not None:
        return str(node.value)[:MAX_VALUE]
    return None


def _by_lines(text: str, path: str) -> Settings:
    """The same by regular expressions, for code that this Python cannot parse, and for notebooks."""
    return Settings(path, "python", tuple(_line_assignments(text)), frozenset(filter(in_scope, _READ.findall(text))))


def _line_assignments(text: str) -> Iterator[Assignment]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        for match in _LINE.finditer(line[: 1 << 16]):
            name, raw = match["a"] or match["b"], match["value"].strip().rstrip(",)")
            if not in_scope(name):
                continue
            literal = re.match(r"""(?:"[^"]*"|'[^']*')""", raw)
            value = unquoted(literal[0])[:MAX_VALUE] if literal else None
            yield Assignment(name, value, number, "" if literal else raw[:200], is_default=bool(match["b"]))


def read_notebook(text: str, path: str = "") -> Settings:
    """A notebook: the code in its cells, and `%env NAME=VALUE`. Lines are those of the file."""
    plain = text.replace('\\"', '"').replace("\\n", "")
    found = list(_line_assignments(plain))
    for number, line in enumerate(plain.split("\n"), 1):
        if (match := re.search(r"%env\s+(\w+)[= ]([^\"]*)", line)) and in_scope(match[1]):
            found.append(Assignment(match[1], unquoted(match[2])[:MAX_VALUE], number))
    return Settings(path, "python", tuple(found), frozenset(filter(in_scope, _READ.findall(plain))))
