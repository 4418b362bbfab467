"""Which version of the training code a rank has: the revision, and a hash of what was changed since."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

_GIT_LIMIT_S = 2.0
_FILES_LIMIT_S = 2.0
_MOST_FILES = 5000
_MOST_BYTES = 1 << 22
_SHOWN = 12
_REVISION = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

Version = dict[str, str | None]


class NoVersion(Exception):
    """The version of the code cannot be told, and why."""


def code_version(place: Path, is_named: bool) -> Version:
    """`how` it was told (git, revision, content), `revision`, and `changes`: a hash, empty for none, None where it is unknown.

    Args:
        place: a file or folder of the code.
        is_named: somebody named the place, so that its content counts where there is no git.

    Blocks: up to a few seconds; on a dead file system for ever.

    Raises:
        NoVersion: it cannot be told.
    """
    if not place.exists():
        raise NoVersion(f"{place} does not exist")
    folder = (place if place.is_dir() else place.parent).resolve()
    top = next((f for f in (folder, *folder.parents) if (f / ".git").exists()), None)
    if top is not None and (revision := head(top)) is not None:
        return {"how": "git", "revision": revision, "changes": changes(top)}
    if is_named:
        return {"how": "content", "revision": content(place), "changes": ""}
    raise NoVersion(f"{folder} is in no git repository; --code names the training code")


def head(top: Path) -> str | None:
    """The revision that is checked out, read by hand; None before the first commit, or where it cannot be read."""
    try:
        git = top / ".git"
        if git.is_file():  # a worktree or a submodule: a file that tells where it is
            git = (top / git.read_text().partition(":")[2].strip()).resolve()
        text = (git / "HEAD").read_text().strip()
        if not text.startswith("ref:"):
            return text if _REVISION.fullmatch(text) else None
        name = text.partition(":")[2].strip()
        common = (git / (git / "commondir").read_text().strip()).resolve() if (git / "commondir").exists() else git
        for folder in (git, common):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        packed = common / "packed-refs"
        lines = packed.read_text().splitlines() if packed.exists() else []
        return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
    except OSError:
        return None


def changes(top: Path) -> str | None:
    """A hash of what differs from the revision, new Python files included; empty for nothing, None where git does not tell."""
    program = shutil.which("git")
    if program is None:
        return None
    try:
        changed = _git(program, top, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
        new = _git(program, top, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    files = [top / os.fsdecode(name) for name in sorted(new.split(b"\0")) if name]
    if not changed and not files:
        return ""
    found = hashlib.sha256(changed)
    for file in files[:_MOST_FILES]:
        found.update(str(file.relative_to(top)).encode(errors="replace") + b"\0" + _bytes(file))
    return found.hexdigest()[:_SHOWN]


def _git(program: str, top: Path, *arguments: str) -> bytes:
    """What git prints. It writes nothing, not even to its index, and asks nobody."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = [program, "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "-C", str(top), *arguments]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_GIT_LIMIT_S,
        check=True,
        env=environ,
    )
    return done.stdout


def content(place: Path) -> str:
    """A hash of a file, or of the Python files of a folder.

    Raises:
        NoVersion: they are too many.
    """
    deadline = time.monotonic() + _FILES_LIMIT_S
    files = [place] if place.is_file() else []
    for parent, folders, names in os.walk(place) if not files else ():
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("__pycache__", "site-packages"))
        files += [Path(parent, name) for name in sorted(names) if name.endswith(".py")]
        if len(files) > _MOST_FILES or time.monotonic() > deadline:
            raise NoVersion(f"{place} is in no git repository and has too many files to compare")
    if not files:
        raise NoVersion(f"{place} is in no git repository and has no Python file")
    found = hashlib.sha256()
    for file in files:
        name = file.name if file == place else str(file.relative_to(place))
        found.update(name.encode(errors="replace") + b"\0" + _bytes(file))
    return found.hexdigest()[:_SHOWN]


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as f:
            return f.read(_MOST_BYTES)
    except OSError as error:
        return f"unreadable: {error.strerror}".encode()
