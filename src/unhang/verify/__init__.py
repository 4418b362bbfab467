"""Proofs by runs: one run of a job, made here or read from a folder, with all that can be said of it; and the answers to questions about runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from unhang.diagnosis import judge_paths
from unhang.errors import UnhangError, UnreadableInput, WrongUsage
from unhang.model import Case, CollectiveTable, Diagnosis, Finding, Outcome, Verdict
from unhang.read.runs import REPORT, holds_report, read_report
from unhang.verify.step_times import StepTrace, StepWatch, add_last_looks, job_of, read_trace
from unhang.watch.process_tree import descendants_of

BAD_ENDS = (Outcome.HANG, Outcome.CRASH, Outcome.STRAGGLER, Outcome.INTERRUPTED)
_END_S = 30.0
_LAST_LINES = 20
_COMPARES = Path(__file__).parents[1] / "inside" / "integrations" / "bootstrap"
_EVERY = "UNHANG_REPLICAS_EVERY"


class RunFailed(UnhangError):
    """A run left no evidence: the command cannot be started, or `unhang run` itself failed."""

    help_text = "see what 'unhang run -- COMMAND' says"


@dataclass(frozen=True)
class Run:
    """A run that is over. `exit_code` None: not known. `overran`: it was ended here because it took too long."""

    folder: Path
    case: Case
    diagnosis: Diagnosis
    trace: StepTrace | None = None
    seconds: float | None = None
    overran: bool = False

    @property
    def exit_code(self) -> int | None:
        """The job's own; 124 where it hung and was ended."""
        return self.case.job.exit_code

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those that are no consequence of another."""
        return tuple(f for f in self.diagnosis.findings if f.consequence_of is None)

    @property
    def cause(self) -> str:
        """The cause of the first finding; "" where there is none."""
        return self.diagnosis.first.cause if self.diagnosis.first else ""

    @property
    def steps(self) -> int | None:
        """Optimizer steps that every rank has done; None where no rank was recorded."""
        known = [rank.steps for rank in self.case.ranks.values() if rank.steps is not None]
        return min(known) if known else None

    @property
    def has_failed(self) -> bool:
        """Whether anything is wrong with it: how it ended, or what was found."""
        bad_end = self.diagnosis.outcome in BAD_ENDS or self.exit_code not in (0, None)
        return bad_end or self.overran or bool(self.diagnosis.findings)

    @property
    def failed_after_s(self) -> float | None:
        """Seconds from the start of the job until ranks waited, or until it ended."""
        hang = self.diagnosis.hang
        return hang.onset_s if hang is not None and hang.onset_s else self.seconds

    @property
    def durations(self) -> dict[int, float]:
        """Seconds of each step that was seen."""
        return self.trace.durations() if self.trace else {}

    def without_calls(self) -> Run:
        """The same without what takes much memory."""
        case = replace(self.case, calls=CollectiveTable.empty(), log=(), events=())
        return replace(self, case=case, trace=None)

    def __str__(self) -> str:
        """One line: how it ended, and how far it came."""
        steps = f", {self.steps} steps" if self.steps else ""
        seconds = f", {self.seconds:.1f} s" if self.seconds is not None else ""
        cause = f": {self.cause}" if self.cause else ""
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        late = ", ended because it took too long" if self.overran else ""
        return f"{self.diagnosis.outcome.value}{cause}{steps}{code}{late}{seconds}"


@dataclass(frozen=True)
class HowToRun:
    """How runs are made. `before`: words in front of `unhang run`, such as those of a fault injector.

    `limit_s`: a run that takes longer is ended, and counts as failed.
    """

    limit_s: float = 3600.0
    stall_after_s: float | None = None
    abort_after_s: float | None = None
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    shows_output: bool = False
    before: tuple[str, ...] = ()

    def command(self, folder: Path, command: Sequence[str]) -> list[str]:
        """The whole command line of a run that leaves its report in `folder`."""
        limits = (("--stall-after", self.stall_after_s), ("--abort-after", self.abort_after_s))
        options = [word for name, value in limits if value is not None for word in (name, f"{value:g}")]
        unhang = [sys.executable, "-m", "unhang", "run", "-q", "--report-dir", str(folder.absolute()), *options]
        return [*self.before, *unhang, "--", *command]


def with_replicas_compared(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job in which what DDP wraps is compared after every tenth optimizer step, or as often as it says itself."""
    path = os.pathsep.join(filter(None, (str(_COMPARES), environ.get("PYTHONPATH", ""))))
    return {**environ, "PYTHONPATH": path, _EVERY: environ.get(_EVERY, "10")}


def make_run(command: Sequence[str], folder: Path, how: HowToRun) -> Run:
    """Runs the job under `unhang run`, with its report in `folder`, and reads what it left.

    Blocks: as long as the job, up to `how.limit_s` and half a minute.

    Raises:
        RunFailed: it left nothing to judge.
        WrongUsage: the folder holds another run.
    """
    bundle = folder / "bundle"
    if bundle.exists():
        raise WrongUsage(f"{folder} holds an earlier run: give another --report-dir")
    began = time.monotonic()
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(
        how.command(folder, command),
        env=how.env,
        cwd=how.cwd,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if how.shows_output else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with _ended_by_signals(), StepWatch(process.pid) as watch:
        reader = threading.Thread(target=_read, args=(process.stderr, last, how.shows_output), daemon=True)
        reader.start()
        overran = _wait(process, how.limit_s)
        reader.join(1.0)
    if process.stderr is not None and not reader.is_alive():  # what the job left behind may hold the pipe
        process.stderr.close()
    seconds = time.monotonic() - began
    if not (bundle / "job.json").exists():
        reason = next((line.strip() for line in reversed(last) if line.strip()), "it said nothing")
        raise RunFailed(f"the run left no evidence (exit code {process.returncode}): {reason}")
    add_last_looks(watch.trace, bundle)
    watch.trace.write(folder)
    return _judged(bundle, folder, watch.trace, seconds, overran)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end us as an exception does, so that the run does not outlive us."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _read(stream: IO[str] | None, last: deque[str], is_shown: bool) -> None:
    with suppress(OSError, ValueError):
        for line in stream or ():
            last.append(line)
            if is_shown:
                sys.stderr.write(line)


def _wait(process: subprocess.Popen[str], limit_s: float) -> bool:
    """Waits for the end; True if it had to be brought about. Our own interruption is passed on, and raised again."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        _end(process, signal.SIGTERM)
        return True
    except BaseException:
        _end(process, signal.SIGINT)
        raise
    return False


def _end(process: subprocess.Popen[str], signo: signal.Signals) -> None:
    """Ends `unhang run`, which ends the job: gently first; SIGINT may be ignored, as it is under nohup; at last all below it."""
    unhang_run = job[0] if (job := job_of(process.pid)) else process.pid
    for number, patience_s in ((signo, _END_S / 3), (signal.SIGTERM, _END_S / 3), (signal.SIGKILL, _END_S / 3)):
        victims = [p.pid for p in descendants_of(unhang_run)] if number == signal.SIGKILL else [unhang_run]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
    process.kill()
    process.wait()


def read_run(path: Path) -> Run:
    """The run that left a report folder, a bundle, or any evidence that `unhang diagnose` reads.

    Raises:
        UnhangError: nothing of it can be read.
    """
    folder = path.parent if path.name == "bundle" else path
    evidence = path / "bundle" if (path / "bundle" / "job.json").exists() else path
    trace = read_trace(folder) if path.is_dir() else None
    found = _judged(evidence, folder, trace, None, False)
    if evidence == path or not holds_report(folder):
        return found
    said = read_report(folder / REPORT)  # the program may have been mended since, and its text is part of a verdict
    return replace(found, diagnosis=replace(found.diagnosis, outcome=said.outcome, findings=said.findings))


def read_toml(path: Path) -> dict[str, Any]:
    """What is written in a file.

    Raises:
        UnreadableInput: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnreadableInput(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from None


def can_start(words: Sequence[str]) -> None:
    """Refuses a command before any run is made.

    Raises:
        WrongUsage: there is no such program.
    """
    if words and shutil.which(words[0]) is None:
        raise WrongUsage(f"{words[0]}: there is no such program")


def runs_of(
    side: str,
    paths: Sequence[str],
    words: Sequence[str],
    repeat: int,
    folder: Path,
    how: HowToRun,
    log: Callable[[str], None],
    enough: Callable[[Sequence[Run]], str] = lambda _: "",
) -> list[Run]:
    """The runs of one side of a comparison: read from paths, and made of a command one after the other.

    `enough`: why no more of them are needed, "" while they are.

    Raises:
        WrongUsage: a path does not exist.
        UnhangError: nothing of a run can be read.
    """
    for path in map(Path, paths):
        if not path.exists():
            raise WrongUsage(f"{path} does not exist")
    found = [read_run(Path(path)) for path in paths]
    for number in range(1, repeat + 1 if words else 1):
        found.append(make_run(words, folder / f"{side}-{number}", how))
        log(f"{side}, run {number} of {repeat}: {found[-1]}")
        if reason := enough(found):
            log(f"{side}: no more runs: {reason}")
            break
    return found


def _judged(evidence: Path, folder: Path, trace: StepTrace | None, seconds: float | None, overran: bool) -> Run:
    judged = judge_paths([evidence])
    return Run(folder, judged.case, judged.diagnosis, trace, seconds, overran)


# Answers to questions about runs.


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question. `is_required`: skipped counts as failed. `is_own`: asked without having been written."""

    name: str
    verdict: Verdict
    reason: str
    is_required: bool = False
    is_own: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it speaks against the run."""
        return self.verdict is Verdict.FAIL or (self.verdict is Verdict.SKIPPED and self.is_required)


def passed(name: str, reason: str) -> Check:
    """It is as it should be."""
    return Check(name, Verdict.PASS, reason)


def failed(name: str, reason: str) -> Check:
    """It is not."""
    return Check(name, Verdict.FAIL, reason)


def skipped(name: str, reason: str) -> Check:
    """The evidence does not tell."""
    return Check(name, Verdict.SKIPPED, reason)


def of_all_runs(checks: Sequence[Check]) -> Check:
    """The same question to several runs as one answer: the first failure, else what was skipped, else the first answer."""
    for verdict in (Verdict.FAIL, Verdict.SKIPPED):
        found = [(number, check) for number, check in enumerate(checks, 1) if check.verdict is verdict]
        if found and len(checks) > 1:
            number, check = found[0]
            return replace(check, reason=f"{len(found)} of {len(checks)} runs, first run {number}: {check.reason}")
        if found:
            return found[0][1]
    return checks[0] if len(checks) == 1 else replace(checks[0], reason=f"all {len(checks)} runs: {checks[0].reason}")


def exit_code_of(checks: Sequence[Check]) -> int:
    """1 if one failed, 3 if a question of our own has no answer, or none has one; else 0."""
    if any(check.has_failed for check in checks):
        return 1
    unanswered = [check for check in checks if check.verdict is Verdict.SKIPPED]
    return 3 if any(check.is_own for check in unanswered) or len(unanswered) == len(checks) else 0
