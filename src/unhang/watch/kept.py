"""What stays in the folder of the reports: the link to the newest one, and which of them are removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LATEST = "latest"


class Kept(NamedTuple):
    """A folder with the report of a run, or of several (of `unhang verify`, or of several nodes). `began_ns`: of the newest."""

    path: Path
    began_ns: int
    is_clean: bool


def point_latest(report_dir: Path) -> None:
    """Makes `latest` beside a report folder lead to it. Somebody else's file of that name stays; a disk without links has none."""
    link, fresh = report_dir.with_name(LATEST), report_dir.with_name(f".{LATEST}-{os.getpid()}")
    with suppress(OSError):
        if link.is_symlink() or not link.exists():
            fresh.symlink_to(report_dir.name)
            fresh.replace(link)


def parse_keep(text: str) -> str:
    """`all`, `failed`, or how many.

    Raises:
        ValueError: it is none of these.
    """
    if text in ("all", "failed") or (text.isascii() and text.isdecimal() and int(text) > 0):
        return text
    raise ValueError("not all, failed, or a number from 1")


def kept_in(folder: Path) -> list[Kept]:
    """What lies in a folder of reports, the newest first. What is no report of ours is none of our business."""
    from unhang.read.runs import began_ns, has_bundle, is_run, jobs_in, jobs_of

    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                path = Path(entry.path)
                jobs = jobs_of([path]) if is_run(path) or has_bundle(path) else jobs_in(path)
                if jobs:
                    is_clean = all(run.report and _is_clean(run.report) for job in jobs for run in job)
                    found.append(Kept(path, max(map(began_ns, jobs)), is_clean))
    return sorted(found, key=lambda kept: (-kept.began_ns, kept.path))


def _is_clean(report: Path) -> bool:
    """Whether a report says that nothing was wrong; one that cannot be read does not."""
    from unhang.errors import UnhangError
    from unhang.read.runs import read_report

    with suppress(UnhangError, OSError):
        found = read_report(report)
        return found.exit_code == 0 and not found.job.exit_code
    return False


def to_remove(kept: Sequence[Kept], keep: str) -> list[Path]:
    """The folders that are not to be kept; the oldest last."""
    if keep == "all":
        return []
    if keep == "failed":
        return [one.path for one in kept if one.is_clean]
    return [one.path for one in kept[int(keep) :]]


def remove(paths: Sequence[Path]) -> None:
    """Removes report folders, and leads `latest` to the newest that is left.

    Raises:
        OSError: one cannot be removed.
    """
    for path in paths:
        shutil.rmtree(path)
    for folder in {path.parent for path in paths}:
        link = folder / LATEST
        if link.is_symlink() and not link.exists():
            left = kept_in(folder)
            link.unlink()
            if left:
                point_latest(left[0].path)
