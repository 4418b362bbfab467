"""`unhang bundle`: one file to send to a colleague, with what `unhang run` or `unhang attach` saw, and without secrets."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from unhang.cli.options import output_option
from unhang.cli.streams import log
from unhang.errors import WrongUsage

_MOST_SHOWN = 12


@click.command("bundle")
@click.argument("what", required=False)
@output_option("The file [unhang-bundle.tar.gz]; - is the standard output.")
def command(what: str | None, output: Path | None) -> int:
    """Pack a report into one file that you can send, without secrets.

    WHAT is a report folder or a bundle; or the pid of a running job, which is then inspected as by 'unhang attach'. Without it, or with -,
    the newest report here. 'unhang diagnose FILE' reads the file.
    """
    target = output or Path("unhang-bundle.tar.gz")
    if what is not None and what.isdecimal() and not Path(what).exists():
        with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
            return _write(_looked_at(what, Path(temporary)), target)
    return _write(_report(what), target)


def _looked_at(pid: str, folder: Path) -> Path:
    from unhang.attach.attaching import Wish, attach, jobs_wanted
    from unhang.show.reports import write_reports
    from unhang.watch.folders import BUNDLE

    jobs, processes = jobs_wanted(Wish(pid))
    write_reports(attach(jobs[0], processes, folder / BUNDLE, Wish(pid)), folder)
    return folder


def _report(what: str | None) -> Path:
    from unhang.cli.diagnose import newest_report
    from unhang.read.runs import REPORTS

    if what is None or what == "-":
        found = newest_report(os.environ)
        if len(found) > 1:
            raise WrongUsage("the newest job has several reports, one of each node; name one of them")
        return Path(found[0])
    path = Path(what)
    return path.parent if path.name in REPORTS and path.is_file() else path


def _write(folder: Path, target: Path) -> int:
    from unhang.attach.folder import pack, pack_to

    if str(target) == "-":
        pack(folder, sys.stdout.buffer)
        return 0
    packed, size = pack_to(folder, target)
    log(f"{target}: {_size(size)}, {len(packed.files)} files, secrets replaced")
    for name, bytes_ in packed.files[:_MOST_SHOWN]:
        log(f"  {name}  {_size(bytes_)}")
    if len(packed.files) > _MOST_SHOWN:
        log(f"  ... and {len(packed.files) - _MOST_SHOWN} more")
    for name, why in packed.left_out[:_MOST_SHOWN]:
        log(f"  left out: {name}: {why}")
    log(f"to read it: unhang diagnose {target.name}")
    return 0


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{max(1, count // 1000)} kB"
