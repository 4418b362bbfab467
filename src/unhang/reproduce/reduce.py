"""Runs a command in changing set-ups, the smallest first, and says in which it fails."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from unhang.errors import WrongUsage
from unhang.model import Diagnosis, Finding, Outcome
from unhang.model.findings import name_ranks
from unhang.show.paper import columns

HANG_ENDED = 124
MOST_RUNS = 200
_GRACE_S = 20.0
_NAME = re.compile(r"[A-Za-z_]\w*")

Options = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Limits:
    """For each run: the time in all, and the settings of `unhang run` where they are given."""

    run_s: float
    stall_after_s: float | None = None
    abort_after_s: float | None = None


@dataclass(frozen=True)
class Row:
    """One run. `result`: passed, hang, crash, over the limit. `detail`: the cause and the ranks, where there is one."""

    values: tuple[str, ...]
    result: str
    detail: str
    exit_code: int | None
    seconds: float
    command: str
    report_dir: str


@dataclass(frozen=True)
class Table:
    """All runs, in the order in which they were made."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def failed(self) -> Row | None:
        """The first run that failed."""
        return next((row for row in self.rows if row.result != "passed"), None)


def options_of(nproc: str | None, vary: Sequence[str]) -> Options:
    """The values by name, from the texts of the command line.

    Raises:
        WrongUsage: a text says nothing.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in [*([f"nproc={nproc}"] if nproc is not None else []), *vary]:
        name, separator, values = text.partition("=")
        split = tuple(v.strip() for v in values.split(","))
        if not separator or not _NAME.fullmatch(name) or not all(split):
            raise WrongUsage(f"{text!r} is not NAME=VALUE,VALUE,...")
        if name in found:
            raise WrongUsage(f"the values of {name!r} are given twice")
        if name == "nproc":
            if not all(v.isdigit() and int(v) > 0 for v in split):
                raise WrongUsage(f"{values!r} are not numbers of processes")
            split = tuple(sorted(split, key=int))
        found[name] = split
    return found


def combinations(options: Options) -> list[tuple[str, ...]]:
    """Every combination, the smallest first: those that are fewest steps away from the first values."""
    indices = product(*(range(len(values)) for values in options.values()))
    ordered = sorted(indices, key=lambda at: (sum(at), at))
    return [tuple(values[i] for i, values in zip(at, options.values(), strict=True)) for at in ordered]


def filled(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with `{name}` replaced; other braces are the user's own."""
    return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), part) for part in command]


def reduce(
    command: Sequence[str], options: Options, limits: Limits, is_all: bool = False, log: Callable[[str], None] = print
) -> Table:
    """Runs the combinations under `unhang run` until one fails, or all of them.

    Blocks: up to `limits.run_s` for each run. Raises: WrongUsage.
    """
    if not command:
        raise WrongUsage("name the command: unhang reproduce --reduce [OPTIONS] -- COMMAND...")
    text = " ".join(command)
    for name in options:
        if f"{{{name}}}" not in text:
            raise WrongUsage(f"{{{name}}} does not occur in the command")
    if "{nproc}" in text and "nproc" not in options:
        raise WrongUsage("the values of {nproc} are missing: --nproc 1,2,4")
    runs = combinations(options)
    if len(runs) > MOST_RUNS:
        raise WrongUsage(f"{len(runs)} combinations are too many: at most {MOST_RUNS}")
    folder = _folder()
    rows: list[Row] = []
    for number, values in enumerate(runs, 1):
        named = dict(zip(options, values, strict=True))
        rows.append(_run(filled(command, named), values, folder / f"{number:03}", limits))
        shown = ", ".join(f"{name}={value}" for name, value in named.items())
        log(f"{number} of {len(runs)}: {shown + ': ' if shown else ''}{rows[-1].result} after {rows[-1].seconds:.1f} s")
        if rows[-1].result != "passed" and not is_all:
            break
    return Table(tuple(options), tuple(rows))


def _folder() -> Path:
    base = Path("unhang-reports") / f"reduce-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 100))]
    return next((path for path in names if not path.exists()), base)


def _run(command: list[str], values: tuple[str, ...], report_dir: Path, limits: Limits) -> Row:
    arguments = ["run", "--quiet", "--report-dir", str(report_dir)]
    for name, seconds in (("--stall-after", limits.stall_after_s), ("--abort-after", limits.abort_after_s)):
        arguments += [name, str(seconds)] if seconds else []
    started = time.monotonic()
    # In a session of its own, so that Ctrl-C comes to it once, from us; what the job prints is in its bundle.
    watched = subprocess.Popen(
        [sys.executable, "-m", "unhang", *arguments, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    is_over = False
    try:
        code: int | None = watched.wait(limits.run_s)
    except subprocess.TimeoutExpired:
        is_over, code = True, None
    finally:
        _end(watched)
    result, detail = _verdict(report_dir, code, is_over, limits)
    shown = report_dir if report_dir.exists() else Path()
    return Row(values, result, detail, code, time.monotonic() - started, shlex.join(command), str(shown))


def _end(watched: subprocess.Popen[bytes]) -> None:
    """Asks `unhang run` to end its job and itself."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        if watched.poll() is None:
            watched.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                watched.wait(_GRACE_S)


def _verdict(report_dir: Path, code: int | None, is_over: bool, limits: Limits) -> tuple[str, str]:
    report: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        report = json.loads((report_dir / "report.json").read_bytes())
    first = (report.get("findings") or [{}])[0]
    ranks = first.get("culprit_ranks") or []
    who = f", {name_ranks(ranks)}" if ranks else ""
    cause = f"{first['cause']}{who}" if first.get("cause") else ""
    if is_over:
        return "over the limit", f"did not end within {limits.run_s:g} s, and no hang was seen"
    if code == 0:
        return "passed", ""
    if code == HANG_ENDED:
        return "hang", cause or "no cause established"
    return "crash", cause or f"exit code {code}"


def table_text(table: Table) -> bytes:
    """All runs as columns, and the first that failed."""
    rows = [(*table.names, "result", ""), *((*row.values, row.result, row.detail) for row in table.rows)]
    lines, failed = [columns(rows), ""], table.failed
    if failed is None:
        lines.append(f"all {len(table.rows)} runs passed")
    else:
        values = ", ".join(f"{name}={value}" for name, value in zip(table.names, failed.values, strict=True))
        lines += [f"first failure: {values or 'the command as it is'}", f"  {failed.command}"]
        lines += [f"  report in {failed.report_dir}"]
    return ("\n".join(lines) + "\n").encode()


def table_json(table: Table) -> bytes:
    """The same for programs."""
    rows = [{**asdict(row), "values": dict(zip(table.names, row.values, strict=True))} for row in table.rows]
    first = table.rows.index(table.failed) if table.failed else None
    return json.dumps({"schema": "unhang.reduction/1", "rows": rows, "first_failure": first}, indent=1).encode() + b"\n"


# A regression test from a finding: it runs the job's own command, fails while the job still hangs or crashes, and passes once it does not.

MADE = "Written by `unhang reproduce --as-test`"
_FAILED = (Outcome.HANG, Outcome.CRASH)
LEAST_LIMIT_S, _TIMES, _MOST_TITLE = 60.0, 3.0, 160

_TEMPLATE = '''"""{made}, after this was found:

{title}

It runs the job's own command under `unhang run`. A job that has not ended after LIMIT_S is ended, and counts as mended: it had failed by then.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = {root}
COMMAND = {command}
CAUSE = {cause!r}
LIMIT_S = {limit_s:.0f}  # the failure was seen {seen}
AFTER_S = {after_s:.0f}  # without progress for so long, the job counts as hung


def test_{name}(tmp_path):
    report = tmp_path / "report"
    watched = [sys.executable, "-m", "unhang", "run", "--stall-after", str(AFTER_S), "--abort-after", str(AFTER_S), "--report-dir", str(report)]
    with (tmp_path / "output.txt").open("w") as output:
        job = subprocess.Popen([*watched, "--", *COMMAND], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGINT)
            job.wait(60)
        finally:
            job.kill()
            job.wait()
    found = json.loads((report / "report.json").read_text())
    said = [f"{{f['title']}}  [{{f['cause']}}]" for f in found["findings"]]
    printed = (tmp_path / "output.txt").read_text()[-3000:]
    assert found["outcome"] not in ("hang", "crash"), "\\n".join([*said, printed])
    assert CAUSE not in [f["cause"] for f in found["findings"]], "\\n".join(said)
'''


def regression_test(diagnosis: Diagnosis, command: tuple[str, ...], path: Path, limit_s: float | None) -> str:
    """The text of a test for `path`, of a job that was started in the working folder.

    `limit_s`: how long the job may run in the test; without it three times as long as it took to fail.

    Raises:
        WrongUsage: the evidence has no failure, or does not say how the job was started.
    """
    if diagnosis.outcome not in _FAILED and not diagnosis.findings:
        raise WrongUsage("the job neither failed nor did wrong, so there is nothing that a test could guard against")
    if not command:
        raise WrongUsage("the evidence does not say how the job is started: give the report of 'unhang run'")
    missing = [word for word in command if word.endswith(".py") and not Path(word).exists()]
    if missing:
        raise WrongUsage(f"{missing[0]} is not here: run this in the folder in which the job was started")
    first, hang = diagnosis.first, diagnosis.hang
    seen = hang.onset_s + (hang.detected_after_s or 0.0) if hang is not None and hang.onset_s is not None else None
    return _TEMPLATE.format(
        made=MADE,
        title=_in_docstring(first.title if first else f"the job ended with: {diagnosis.outcome}"),
        root=_root(path),
        command=_words(command),
        cause=first.cause if first else "",
        limit_s=limit_s or max(LEAST_LIMIT_S, _TIMES * (seen or 0.0)),
        after_s=10,
        seen=f"after {seen:.0f} s" if seen else "at a time that is not known",
        name=_name(first),
    )


def _in_docstring(title: str) -> str:
    """A title, which may hold what ranks have printed, as text that ends no string."""
    return " ".join(title.split())[:_MOST_TITLE].replace("\\", "/").replace('"', "'")


def _root(path: Path) -> str:
    """The working folder, from the test's place where it lies above that."""
    here = Path.cwd().resolve()
    parents = list(path.resolve().parents)
    return f"Path(__file__).resolve().parents[{parents.index(here)}]" if here in parents else f"Path({str(here)!r})"


def _words(command: tuple[str, ...]) -> str:
    """The command; its interpreter is that of the test, wherever it lies."""
    words = [repr(word) for word in command]
    if re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        words[0] = "sys.executable"
    return f"[{', '.join(words)}]"


def _name(finding: Finding | None) -> str:
    name = re.sub(r"\W+", "_", finding.cause if finding else "failure").strip("_")
    return f"no_{name}" if name and not keyword.iskeyword(name) else "no_failure"
