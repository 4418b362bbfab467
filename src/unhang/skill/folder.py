"""Makes the skill's files and writes them as a folder that agents read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from unhang import __version__
from unhang.errors import UnhangError
from unhang.skill.advice import advice_page, advice_short
from unhang.skill.pages import rules_page, short_tree, tree_page

NAME = "unhang"
MAIN = "SKILL.md"
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_ONLY_WITH = re.compile(r"^\{\{(\w+):(.*)\}\}\n", re.MULTILINE)
_DIGEST = re.compile(r'^  digest: "([^"]*)"$', re.MULTILINE)
_OURS = re.compile(r"^  written-by: unhang$", re.MULTILINE)


class FolderInTheWay(UnhangError):
    """The target exists, and was not written by us, or was changed since."""

    help_text = "move it away, or overwrite it with --force"


class CannotWrite(UnhangError):
    """The folder cannot be written."""


def skill_files(commands: Mapping[str, str]) -> dict[str, str]:
    """Path within the folder -> text. `commands`: the commands that there are, and what each does."""
    template = resources.files(__package__).joinpath(MAIN).read_text(encoding="utf-8")
    template = _ONLY_WITH.sub(lambda m: f"{m[2]}\n" if m[1] in commands else "", template)
    slots = {
        "version": __version__,
        "commands": "\n".join(
            ["| command | |", "|---|---|", *(f"| `unhang {n}` | {h} |" for n, h in commands.items())]
        ),
        "tree": short_tree(),
        "advice": advice_short(),
    }
    files = {
        MAIN: _SLOT.sub(lambda m: slots.get(m[1], m[0]), template),
        "references/decision-tree.md": tree_page(lambda rule: f"rules.md#{rule}", commands, is_drawn=False),
        "references/rules.md": rules_page(commands),
        "references/advice.md": advice_page(),
    }
    return {**files, MAIN: files[MAIN].replace("{{digest}}", _digest(files))}


def _digest(files: Mapping[str, str]) -> str:
    """A checksum of all files, that of itself left out."""
    blank = {name: _DIGEST.sub("", text) for name, text in files.items()}
    return hashlib.sha256("\0".join(f"{name}\0{blank[name]}" for name in sorted(blank)).encode()).hexdigest()[:16]


def default_target(here: Path) -> Path:
    """Where skills are looked for: `.claude/skills` in a folder that has `.claude`, else `skills`."""
    return here / ".claude" / "skills" if (here / ".claude").is_dir() else here / "skills"


def install(files: Mapping[str, str], target: Path, force: bool = False) -> Path:
    """Writes the skill to `target/unhang`, and returns that folder. An older version of ours is replaced.

    Raises:
        FolderInTheWay: the folder holds what we did not write, and `force` is not given.
        CannotWrite: the system refuses.
    """
    folder = target / NAME
    if not force:
        _refuse_foreign(folder, files)
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.name}.tmp")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
    except OSError as error:
        raise CannotWrite(f"{error.filename or folder}: {error.strerror}") from error
    return folder


def _refuse_foreign(folder: Path, files: Mapping[str, str]) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise FolderInTheWay(f"{folder} is no folder")
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if not there:
        return
    texts = {name: _text(folder / name) for name in sorted(there)}
    main = texts.get(MAIN, "")
    told = _DIGEST.search(main)
    if not _OURS.search(main) or told is None:
        raise FolderInTheWay(f"{folder} was not written by unhang")
    if foreign := sorted(there - set(files)):
        raise FolderInTheWay(f"{folder} holds files of others: {', '.join(foreign[:3])}")
    if told[1] != _digest(texts):
        raise FolderInTheWay(f"{folder} was changed since unhang wrote it")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
