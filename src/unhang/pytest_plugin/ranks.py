"""`run_ranks`: runs a function in several ranks below `unhang run`, and says why they failed."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unhang.pytest_plugin import RanksFailed

# The verdict of a report folder, as the text of a test's failure; and where such folders go.

_MOST_EVIDENCE = 8
_MOST_LINES = 60


class Verdict(NamedTuple):
    """What happened in one line, and why, where, and what to do."""

    headline: str
    rest: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.headline}\n{self.rest}"


def read_verdict(report: Path) -> Verdict | None:
    """What a report says, in short; None where there is none."""
    try:
        fields = json.loads((report / "report.json").read_bytes())
        lines = (report / "report.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return None
    if not fields["findings"]:
        return Verdict(lines[0], "\n".join(lines[1:_MOST_LINES])) if lines else None
    first, *others = fields["findings"]
    place = first["location"]
    at = f"{place['file'].rsplit('/', 1)[-1]}:{place['line']}" if place else ""
    where = f", at {at}" if at and at not in first["title"] else ""
    headline = f"{fields.get('verdict', fields['outcome']).upper()}: {first['title']}{where} [{first['cause']}, {first['confidence']:.0%}]"
    also = [f"also: {other['title']}" for other in others[:3] if not other["consequence_of"]]
    return Verdict(headline, "\n".join([*_explained(first), *also]))


def _explained(finding: Mapping[str, Any]) -> Iterator[str]:
    from unhang.model.findings import Fix  # only a test that failed pays for it

    if place := finding["location"]:
        yield f"where: {place['file']}:{place['line']} in {place['function']}"
    yield f"why: {finding['because']}"
    yield "evidence:"
    yield from (f"  {e['source']}: {e['text']}" for e in finding["evidence"][:_MOST_EVIDENCE])
    for fix in map(Fix.of, finding["fixes"]):
        yield f"what to do: {fix.title}" if fix.helps else fix.title
        yield from (f"  {line}" for line in fix.change.splitlines())
        yield f"  verify: {fix.verify}"


def folder_for(reports: Path, test: str) -> Path:
    """A new folder for the report of a test, named after it."""
    reports.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{re.sub(r'[^A-Za-z0-9_]+', '-', test)[:40]}-", dir=reports))


HUNG = 124
_POLL_S = 0.05
_END_S = 20.0  # so long may `unhang run` take to end the job and to write the report
_MOST_OUTPUT = 100_000


@dataclass(frozen=True)
class RunRanks:
    """What the fixture gives. `reports`: the folder below which the report of a failure stays; `name`: of the test."""

    reports: Path
    name: str
    timeout_s: float
    abort_after_s: float

    def __call__(
        self,
        fn: Callable[..., Any],
        ranks: int,
        *args: Any,
        backend: str | None = "gloo",
        timeout: float | None = None,
        abort_after: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Runs `fn(*args)` in each rank, a process of its own, and returns what they return, rank 0 first.

        Args:
            fn: A function at the top level of a module: each rank imports it.
            ranks: How many.
            args: What pickle can carry, as well as the results.
            backend: The default group is made with it before `fn`, and ended after it; None leaves that to `fn`.
            timeout: Seconds for all of it [ini: unhang_timeout, 300].
            abort_after: End a job that only seems to hang when its wait has lasted so many seconds [ini: unhang_abort_after, 60].
            env: Variables for the ranks, beside those of this process.

        Blocks: up to `timeout`, and some seconds for the end of the job.

        Raises:
            RanksFailed: a rank raised, died or hung, or it took too long.
            TypeError: `fn`, `args` or `ranks` cannot be used.
        """
        __tracebackhide__ = True
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise TypeError(f"run_ranks(fn, 4): the number of ranks is a whole number from 1 on, not {ranks!r}")
        call = _packed(fn, args)
        limit_s, wait_s = timeout or self.timeout_s, abort_after or self.abort_after_s
        with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
            folder, report = Path(temporary), folder_for(self.reports, self.name)
            (folder / "call.pickle").write_bytes(call)
            (folder / "spec.json").write_text(json.dumps(_spec(fn, ranks, backend)), encoding="utf-8")
            code, complaint = _run(folder, report, limit_s, wait_s, env or {})
            _show_output(report)
            results = [folder / f"result-{rank}.pickle" for rank in range(ranks)]
            if code == 0 and all(map(Path.exists, results)):
                shutil.rmtree(report, ignore_errors=True)
                return [pickle.loads(path.read_bytes()) for path in results]
            first = _first_error(folder)
        what = f"{getattr(fn, '__name__', 'fn')} in {ranks} ranks"
        raise _failure(what, code, limit_s, first, read_verdict(report), complaint, report)


def _packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Function and arguments for the ranks, which import the function."""
    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"run_ranks takes a function, not {fn!r}")
    name = getattr(fn, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        what = "a lambda" if "<lambda>" in name else f"{name.replace('.<locals>', '')}, which is made inside a function"
        raise TypeError(
            f"run_ranks cannot use {what}: each rank is a process that imports it; move it to the top level of the module"
        )
    for what, value in (("the function", fn), ("the arguments", args)):
        try:
            pickle.dumps(value)
        except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
            raise TypeError(
                f"run_ranks cannot hand {what} to the ranks: {type(error).__name__}: {error}; give what pickle can carry"
            ) from None
    return pickle.dumps((fn, args))


def _spec(fn: Callable[..., Any], ranks: int, backend: str | None) -> dict[str, Any]:
    function = getattr(fn, "func", fn)  # of a functools.partial
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    known = {"name": module.__name__, "file": file} if module is not None and file else None
    return {"ranks": ranks, "backend": backend, "path": [os.path.abspath(p) for p in sys.path], "module": known}


def _run(folder: Path, report: Path, limit_s: float, wait_s: float, env: Mapping[str, str]) -> tuple[int | None, str]:
    """`unhang run` on the launcher. Its exit code, None where it had to be ended at the limit; and what it said.

    Everything below it is ended when this is left, whatever happens.
    """
    command = [
        sys.executable, "-m", "unhang", "run", "--quiet", "--join", "off", "--on-hang", "abort", "--report-dir", str(report),
        "--abort-after", f"{wait_s:g}", "--", sys.executable, "-m", "unhang.pytest_plugin.launcher", str(folder),
    ]  # fmt: skip
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, env={**os.environ, **env}, start_new_session=True
        )
        try:
            in_time = _is_over(process, limit_s)
            if not in_time:
                process.send_signal(signal.SIGTERM)
                _is_over(process, _END_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
            ended = process.wait()
            if process.stdin:
                process.stdin.close()  # open until now: its end tells the launcher that we are gone
    text = (folder / "said").read_text(errors="replace")[-4000:]
    return (ended if in_time else None), text


def _is_over(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ends within the limit. It is not reaped."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(_POLL_S)
    return False


def _show_output(report: Path) -> None:
    with suppress(OSError):
        text = (report / "bundle" / "output.log").read_bytes()[-_MOST_OUTPUT:].decode(errors="replace")
        sys.stdout.write(text)


def _first_error(folder: Path) -> tuple[int, str, str] | None:
    """Rank, last line and traceback of the exception that was raised first."""
    found = []
    for path in folder.glob("error-*.json"):
        with suppress(OSError, ValueError):
            fields = json.loads(path.read_bytes())
            found.append((int(fields["at_ns"]), int(fields["rank"]), str(fields["error"]), str(fields["traceback"])))
    return min(found)[1:] if found else None


def _failure(
    what: str,
    code: int | None,
    limit_s: float,
    first: tuple[int, str, str] | None,
    verdict: Verdict | None,
    said: str,
    report: Path,
) -> RanksFailed:
    where = [f"report: {report / 'report.html'}"] if verdict else []
    if code is None:
        head, body = f"{what}: not over after {limit_s:g} s, and ended", [verdict.text if verdict else said]
    elif code == HUNG and verdict:
        return RanksFailed("\n".join((verdict.headline, verdict.rest, *where)), report=report)
    elif first is not None:
        rank, error, traceback = first
        more = [f"unhang: {verdict.headline}"] if verdict and verdict.headline else []
        text = "\n".join((f"{what}: rank {rank} raised {error}", "", traceback.rstrip(), "", *more, *where))
        return RanksFailed(text, rank, traceback, report)
    else:
        head, body = f"{what}: ended with exit code {code}", [verdict.text if verdict else said]
    return RanksFailed("\n".join((head, *body, *where)), report=report)
