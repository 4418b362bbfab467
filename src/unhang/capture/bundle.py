"""Copies a run directory to where it stays."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from unhang.capture.folders import LOCK, make_fallback_dir
from unhang.read.redact import redact_command

BUNDLE = "bundle"


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Regular files below `folder` with their sizes; no sockets, links, locks or half-written files."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if name != LOCK and not name.endswith(".tmp")):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield status.st_size, path


def _copy_file(source: Path, target: Path) -> None:
    """One file; the command line that a training process noted of itself loses its secrets."""
    if source.name == "identity.json":
        with suppress(ValueError, UnicodeDecodeError):
            identity = json.loads(source.read_text(encoding="utf-8"))
            if isinstance(identity, dict) and isinstance(identity.get("argv"), list):
                identity["argv"] = redact_command([str(word) for word in identity["argv"]])
                target.write_text(json.dumps(identity), encoding="utf-8")
                return
    shutil.copyfile(source, target)


def copy_bundle(run_dir: Path, target: Path, copy_file: Callable[[Path, Path], None] = _copy_file) -> None:
    """Copies everything but sockets, the small files first. An older bundle at `target` makes room.

    Raises:
        OSError: it could not be written whole (then nothing of it is left), or something else is at `target`.
    """
    if (target / "job.json").exists():
        shutil.rmtree(target)
    staging = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        for _, source in sorted(_files(run_dir)):
            copy = staging / source.relative_to(run_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                copy_file(source, copy)
            except FileNotFoundError:
                if source.exists():
                    raise
                # else a process that outlived the job has just replaced or removed its file
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def save_bundle(
    run_dir: Path,
    report_dir: Path | None,
    complain: Callable[[str], None],
    copy_file: Callable[[Path, Path], None] = _copy_file,
) -> Path:
    """Brings the evidence to `report_dir`/bundle and removes the run directory.

    Where that cannot be written (any more), a temporary folder takes its place, and one line says so; if that fails
    too, the run directory stays where it is.

    Returns:
        The folder that holds the evidence.
    """
    reason = "there is no folder for the report"
    if report_dir:
        try:
            copy_bundle(run_dir, report_dir / BUNDLE, copy_file)
            shutil.rmtree(run_dir, ignore_errors=True)
            return report_dir / BUNDLE
        except OSError as error:
            reason = f"the evidence cannot go to {report_dir} ({error.strerror or error})"
    try:
        fallback = make_fallback_dir() / BUNDLE
        copy_bundle(run_dir, fallback, copy_file)
    except OSError:
        complain(f"{reason}; it stays in {run_dir}")
        return run_dir
    complain(f"{reason}; it goes to {fallback}")
    shutil.rmtree(run_dir, ignore_errors=True)
    return fallback
