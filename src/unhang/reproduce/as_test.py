"""A regression test from a finding: it runs the job's own command, fails while the job still hangs or crashes, and passes once it does not."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path

from unhang.errors import WrongUsage
from unhang.model import Diagnosis, Finding, Outcome

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
    first = diagnosis.findings[0] if diagnosis.findings else None
    seen = _seen_s(diagnosis)
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


def _seen_s(diagnosis: Diagnosis) -> float | None:
    """Seconds from the start of the job to the verdict."""
    hang = diagnosis.hang
    return None if hang is None or hang.onset_s is None else hang.onset_s + (hang.detected_after_s or 0.0)


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
