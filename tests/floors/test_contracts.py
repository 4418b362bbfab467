"""What others build on and nobody may change by accident: names, exit codes, dependencies, floors."""

from __future__ import annotations

import ast
import runpy
import sys
import tomllib
from pathlib import Path

from unhang import errors
from unhang.model import CAUSES, Outcome, Verdict

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted((ROOT / "src" / "unhang").rglob("*.py"))


def test_the_base_install_is_small_and_never_brings_torch() -> None:
    names = {d.split(">")[0] for d in PROJECT["project"]["dependencies"]}
    assert names == {"click", "rich", "msgspec"}  # numpy alone would take twice as much as all of it
    everything = [d for extra in PROJECT["project"]["optional-dependencies"].values() for d in extra]
    assert not [d for d in everything if d.startswith("torch")]


def test_exit_codes() -> None:
    assert errors.UnhangError.exit_code == 2
    assert errors.NothingToJudge.exit_code == 3


def test_outcomes_and_verdicts() -> None:
    assert [str(o) for o in Outcome] == [
        "hang", "crash", "straggler", "interrupted", "clean", "unknown", "stalled", "moves",
    ]  # fmt: skip
    assert [str(v) for v in Verdict] == ["pass", "fail", "skipped", "error"]


def test_causes_are_those_of_the_catalogue() -> None:
    assert len(CAUSES) == 44
    assert all(name == name.lower() and " " not in name for name in CAUSES)


def unreadable(path: Path) -> list[str]:
    """What makes a file hard to read."""
    text = path.read_text()
    tree = ast.parse(text)
    wrong = [f"{len(text.splitlines())} lines"] if len(text.splitlines()) > 400 else []
    if not ast.get_docstring(tree) and path.name != "__init__.py":
        wrong.append("does not say what it is")
    long = [
        f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None and node.end_lineno - node.lineno >= 60
    ]
    return wrong + long


def test_files_and_functions_stay_readable() -> None:
    assert len(SOURCES) > 100
    assert {str(path.relative_to(ROOT)): wrong for path in SOURCES if (wrong := unreadable(path))} == {}


def test_no_module_is_named_like_a_standard_one() -> None:
    names = [path for path in SOURCES if path.parent.name != "bootstrap" and path.stem != "__init__"]
    assert [str(path.relative_to(ROOT)) for path in names if path.stem in sys.stdlib_module_names] == []


def test_the_recorder_needs_nothing_but_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "torch", "_unhang_inside"}
    inside = ROOT / "src" / "unhang" / "inside"
    files = [*inside.glob("*.py"), *(inside / "recorder").rglob("*.py")]
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in {*allowed, "__future__"}, path


def test_the_pages_on_rules_are_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "make_rules.py"))["pages"]()
    written = {path.name: path.read_text() for path in (ROOT / "docs" / "rules").glob("*.md")}
    assert written == pages, "run make docs"


def test_the_messages_that_are_read_before_a_release_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_messages.py"))
    assert made["FILE"].read_text(encoding="utf-8") == made["text"](), "run make pages"
