"""From a failure's evidence to the smallest stand-alone program that fails in the same way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.model import Diagnosis, grouped
from unhang.model.findings import name_ranks
from unhang.reproduce import server
from unhang.reproduce.program import render, wrong_result
from unhang.reproduce.schedule import Schedule, Step, few_ranks, leap, shrink
from unhang.reproduce.schedule_cut import NotReproducible, cut

LIMIT_S = 60.0
TRIAL_QUIET_S, _TRIAL_LIMIT_S = 0.8, 20.0
_SHARE_OF_TRIALS = 0.6
_FRESH_LIMIT_S = 45.0
_START_LIMIT_S = 60.0
PASSES, FAILS = 0, 1
_TWO_RANKS = Schedule({0: (), 1: ()}, {}, ())  # of a call that gives a wrong result
_NOT_RUN = "not run: whether it fails was not tried"


class NoTrials(UnhangError):
    """Programs cannot be tried out here."""

    help_text = "torch must be importable; --no-run writes the program without trying it"


@dataclass
class Reproduction:
    """What was written and what trying it showed. `fix_passes`: None where no other order of calls is a fix."""

    program: str
    title: str
    schedule: Schedule
    ranks_recorded: int
    was_run: bool = False
    fix_passes: bool | None = None
    trials: int = 0
    seconds: float = 0.0
    output: str = ""
    notes: list[str] = field(default_factory=list)


class Trials:
    """A process that has torch loaded and tries programs; use as a context."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.count = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, "-P", server.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started = self._answer(_START_LIMIT_S)
        if "torch" not in started:
            self.close()
            raise NoTrials(f"programs cannot be tried: {started.get('error', 'torch did not start')}")

    def run(self, text: str, *arguments: str, limit_s: float = _TRIAL_LIMIT_S) -> tuple[int | None, str]:
        """The exit code (None: over the limit) and the output of a program.

        Blocks: up to `limit_s`.
        """
        self.count += 1
        path = self._folder / f"trial{self.count}.py"
        path.write_text(text)
        request = {"path": str(path), "arguments": arguments, "limit_s": limit_s}
        assert self._server.stdin is not None
        try:
            print(json.dumps(request), file=self._server.stdin, flush=True)
        except OSError:
            return None, ""
        answer = self._answer(limit_s + 5)
        return answer.get("code"), str(answer.get("output", ""))

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._server.stdout is not None
        watchdog = threading.Timer(limit_s, self._server.kill)
        watchdog.start()
        try:
            line = self._server.stdout.readline()
        finally:
            watchdog.cancel()
            watchdog.join()
        with suppress(ValueError):
            return dict(json.loads(line))
        return {}

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._server.wait(2)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reproduce(s: Situation, diagnosis: Diagnosis, output: Path, limit_s: float = LIMIT_S) -> Reproduction:
    """Writes the smallest program that fails as the job did, after it has done so in a process of its own.

    Blocks: up to about `limit_s`. Raises: NotReproducible, with the reason; NoTrials.
    """
    started = time.monotonic()
    if (wrong := wrong_result(s, diagnosis)) is not None:
        return _wrong_result(wrong, s, diagnosis, output, started)
    schedule = _cut(s, diagnosis)
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder, Trials(Path(folder)) as trials:
        spent_s = time.monotonic() - started  # a busy machine needs long to start torch, and will once more at the end
        base, small = smallest(schedule, trials, limit_s * _SHARE_OF_TRIALS - spent_s)
        for candidate in (small,) if small is base else (small, base):
            made = _final(trials, candidate, diagnosis, output, len(s.case.world))
            if made is not None:
                made.trials, made.seconds = trials.count, time.monotonic() - started
                return made
    raise NotReproducible("the program that failed in the trials does not fail reliably: the failure depends on time")


def _wrong_result(text: str, s: Situation, diagnosis: Diagnosis, output: Path, started: float) -> Reproduction:
    """Of a collective that gives a wrong result: tried as it is, and put right."""
    output.write_text(text)
    code, printed = _as_a_process(output)
    if code != FAILS:
        output.unlink(missing_ok=True)
        raise NotReproducible("the call gives the right result here: the tensors' memory may differ from the job's")
    is_right = _as_a_process(output, "fixed")[0] == PASSES
    ranks, seconds = len(s.case.world), time.monotonic() - started
    return Reproduction(text, diagnosis.findings[0].title, _TWO_RANKS, ranks, True, is_right, 2, seconds, printed)


def smallest(schedule: Schedule, trials: Trials, limit_s: float) -> tuple[Schedule, Schedule]:
    """A form of the schedule to fall back on, and the smallest that fails in the same way; looks for it for `limit_s`.

    Raises:
        NotReproducible: no form of it fails in this way.
    """
    deadline = time.monotonic() + limit_s

    def fails(candidate: Schedule) -> bool:
        if time.monotonic() > deadline:
            return False
        return trials.run(render(candidate, "A trial.", quiet_s=TRIAL_QUIET_S))[0] == FAILS

    if (small := leap(schedule, fails)) is not None:
        return schedule, small
    base = next((candidate for candidate in _variants(schedule) if fails(candidate)), None)
    if base is None:
        code, output = trials.run(render(schedule, "A trial."))  # with more patience
        if code != FAILS:
            raise NotReproducible(_why_not(code, output, schedule))
        base = schedule
    return base, shrink(base, fails)


def _cut(s: Situation, diagnosis: Diagnosis) -> Schedule:
    whole = cut(s, diagnosis)
    if (few := few_ranks(whole)) is None:
        few_of = f"few of its {len(whole.ranks)} ranks"
        raise NotReproducible(f"cannot be replayed with {few_of}: their transfers depend on each other")
    return few


def write_only(s: Situation, diagnosis: Diagnosis, output: Path) -> Reproduction:
    """Writes the program of the few calls that did not complete, without running anything.

    Raises:
        NotReproducible: with the reason.
    """
    if (wrong := wrong_result(s, diagnosis)) is not None:
        output.write_text(wrong)
        return Reproduction(wrong, diagnosis.findings[0].title, _TWO_RANKS, len(s.case.world), notes=[_NOT_RUN])
    schedule = _cut(s, diagnosis)
    schedule = schedule.without(schedule.keys).fronts_only()
    title = describe(schedule)
    text = render(schedule, title, _note(diagnosis, schedule), with_fix=True)
    output.write_text(text)
    return Reproduction(text, title, schedule, len(s.case.world), notes=[_NOT_RUN])


def _variants(schedule: Schedule) -> Iterator[Schedule]:
    """Each rank up to the call in which it is; all calls; only the open ones. And again with each rank as the root.

    The recorder does not tell the root of a broadcast, reduce, gather or scatter.
    """
    forms = [schedule.fronts_only(), schedule, schedule.without(schedule.keys)]
    if forms[0].steps == schedule.steps:
        del forms[0]
    yield from forms
    if schedule.has_open_root:
        for rank in (*schedule.culprits, *(r for r in schedule.ranks if r not in schedule.culprits)):
            yield forms[0].rooted_at(rank)


def _why_not(code: int | None, output: str, schedule: Schedule) -> str:
    if code is None:
        return "the program with the recorded calls does not come to an end within its limit"
    last = output.strip().splitlines()[-1:] or ["no output"]
    waits = ", ".join(f"rank {r}: {what}" for r, what in schedule.expected.items())
    return f"the recorded calls alone do not fail in this way ({last[0]}); the report has {waits}"


def _final(
    trials: Trials, schedule: Schedule, diagnosis: Diagnosis, output: Path, ranks_recorded: int
) -> Reproduction | None:
    """The program as it is left behind, run once more as a fresh process; None if it does not fail."""
    title, fix_passes = describe(schedule), None
    if schedule.fix():
        fixed = render(schedule, title, _note(diagnosis, schedule), with_fix=True)
        fix_passes = trials.run(fixed, "fixed")[0] == PASSES
    text = render(schedule, title, _note(diagnosis, schedule), with_fix=bool(fix_passes))
    output.write_text(text)
    code, printed = _as_a_process(output)
    if code == FAILS:
        return Reproduction(text, title, schedule, ranks_recorded, True, fix_passes, output=printed)
    output.unlink(missing_ok=True)
    if code is None:
        raise NotReproducible(
            f"the program failed in the trials, but as a process of its own it did not end within {_FRESH_LIMIT_S:g} s: "
            "this machine is too busy to tell"
        )
    return None


def _as_a_process(program: Path, *arguments: str) -> tuple[int | None, str]:
    """The exit code of the program (None: over the limit) and its output. Nothing of it stays.

    Blocks: up to `_FRESH_LIMIT_S`.
    """
    process = subprocess.Popen(
        [sys.executable, str(program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # its ranks are in its group
    )
    try:
        printed, _ = process.communicate(timeout=_FRESH_LIMIT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, ""
        raise
    return process.returncode, printed


def _note(diagnosis: Diagnosis, schedule: Schedule) -> str:
    finding = diagnosis.findings[0]
    where = f"{' '.join(finding.title.split())}."
    group, seq = (finding.process_group or {}).get("pg_desc"), (finding.collective or {}).get("seq")
    open_at = [f.position for r in schedule.ranks if (f := schedule.front(r)) is not None and f.group == group]
    if isinstance(seq, int) and open_at and seq < min(open_at):
        where += f"\nThe ranks diverge at call #{seq}; the calls from there to the one that is replayed pair by chance."
    if diagnosis.job.backend == "nccl":
        where += "\nThe job ran on nccl, where the call waits for ever; gloo may end the process instead."
    return where


def describe(schedule: Schedule) -> str:
    """The failure in one line: which rank makes which call where the others make another one."""
    odd = [r for r in schedule.ranks if r in schedule.culprits]
    fronts = {r: f for r in schedule.ranks if (f := schedule.front(r)) is not None}
    mine = fronts.get(odd[0]) if odd else None
    others = [r for r in fronts if r not in odd and mine is not None and fronts[r].key == mine.key]
    if mine is not None and mine.key[:1] == ("c",) and others:
        theirs = fronts[others[0]]
        ours, reference = (
            (mine.op, theirs.op) if mine.op != theirs.op else (f"{s.op} of {s.size} {s.dtype}" for s in (mine, theirs))
        )
        return f"group {mine.group}, call {mine.key[2]}: {_said(odd, 'makes')} {ours} where {_said(others, 'makes')} {reference}"
    said = grouped((_doing(step), rank) for rank, step in sorted(fronts.items(), key=lambda item: item[0] not in odd))
    for rank in odd:
        if rank not in fronts and schedule.steps[rank]:
            said.setdefault(f"comes no further than {schedule.steps[rank][-1].text}", []).append(rank)
    return ", ".join(_said(ranks, text) for text, ranks in said.items())


def _doing(step: Step) -> str:
    if step.is_local:
        return step.text
    return f"waits for {step.text.removeprefix('wait for ')}" if step.op == "store_wait" else f"waits in {step.text}"


def _said(ranks: Sequence[int], text: str) -> str:
    verb, _, rest = text.partition(" ")
    if len(ranks) > 1:
        verb = {"is": "are", "does": "do"}.get(verb, verb.removesuffix("s"))
    return f"{name_ranks(ranks)} {verb} {rest}".rstrip()


def made_text(made: Reproduction, path: Path) -> bytes:
    """What was written to `path`, and what trying it showed."""
    ranks, lines = len(made.schedule.ranks), len(made.program.splitlines())
    size = f"{path} ({lines} lines, {ranks} of {made.ranks_recorded} ranks)"
    if not made.was_run:
        return f"WRITTEN, NOT RUN  {made.title}\n  program  {size}\n".encode()
    text = [
        f"REPRODUCED  {made.title}",
        f"  program  {size}",
        f"  run      fails the same way: python {path} ends with exit code 1 ({made.trials} trials in {made.seconds:.0f} s)",
    ]
    if made.fix_passes:
        has_calls = any(made.schedule.steps.values())
        what = "the calls that the ranks should have made" if has_calls else "tensors in one piece"
        text.append(f"  fix      passes: python {path} fixed, {what}")
    text += [f"  note     {note}" for note in made.notes]
    return ("\n".join(text) + "\n").encode()


def made_json(made: Reproduction, path: Path) -> bytes:
    """The same for programs."""
    content = {
        "schema": "unhang.reproduction/1",
        "program": str(path),
        "title": made.title,
        "fails_the_same_way": True if made.was_run else None,
        "fix_passes": made.fix_passes,
        "ranks": made.schedule.ranks,
        "stands": {str(rank): what for rank, what in made.schedule.expected.items()},
        "trials": made.trials,
        "seconds": round(made.seconds, 1),
        "notes": made.notes,
    }
    return json.dumps(content, indent=1).encode() + b"\n"
