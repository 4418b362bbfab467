"""Which files an agent may have read: those below one folder, and nothing that leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

from unhang.errors import WrongUsage

_MOST_FILES = 200_000


class OutOfRoot(WrongUsage):
    """A path that is not allowed."""

    help_text = ""


def confined(text: str, root: Path) -> Path:
    """The absolute path that `text` names, relative to `root` or below it. What is there holds no link that leads out.

    Raises:
        OutOfRoot: it leads out of the root, is no path of this machine, or is not there.
    """
    if not text or "\0" in text or "://" in text:
        raise OutOfRoot(f"{text!r} is no path below {root}")
    if ".." in Path(text).parts:
        raise OutOfRoot(f"{text!r}: '..' is not allowed; name a path below {root}")
    path = root / text
    if not path.resolve().is_relative_to(root):
        raise OutOfRoot(f"{text!r} leads out of {root}")
    if not os.path.lexists(path):
        raise OutOfRoot(f"{text!r}: there is no such file below {root}")
    _check_tree(path, root)
    return path


def _check_tree(folder: Path, root: Path) -> None:
    """Refuses links below `folder` that lead out of the root, and more files than anybody meant."""
    count = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = Path(parent, name)
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                raise OutOfRoot(f"{entry.relative_to(root)} is a link that leads out of {root}")
        count += len(files)
        if count > _MOST_FILES:
            raise OutOfRoot(f"{folder} holds more than {_MOST_FILES:,} files; name a part of it")
