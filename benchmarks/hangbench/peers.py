"""What torch itself says about the same faults: its own text, torchfrtrace on the dumps of the same run, and the DETAIL mode.

The texts are read generously: a rank, a line or a cause counts as named if any part of the text says it, and what only says
that a rank did not come counts as every cause in which a rank does not come.
"""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.hangbench.cases import HERE, SEED, Run, truth_with
from benchmarks.hangbench.jobs import injected, launched, read_record, run_limited, work_folder
from benchmarks.hangbench.score import FALSE_ACCUSATION, HIT, NOT_RUN, UNDECIDED, WRONG_LINE, Score, Truth

TOOLS = ("torch alone", "torchfrtrace", "DETAIL")
TIMEOUT_S = 10
LONGER_S = {"gan_diffusion": 30}  # its workers need more than ten seconds to start, all ranks at once
PER_STORY = 5
_LIMIT_S = 75
_FRTRACE_S = 40
_SILENT_S = 3
ABSENT = ("code-divergence", "uneven-inputs", "collective-order-race", "rendezvous-incomplete")
# What a text must hold for a cause to count as said.
SAID = (
    ("size-mismatch", r"data size doesn't match|size mismatch|SIZE_OR_SYNTAX|mismatch between collectives"),
    ("code-divergence", r"mismatch between collectives|COLLECTIVE_TYPE_MISMATCH|type mismatch"),
    ("collective-order-race", r"mismatch between collectives|COLLECTIVE_TYPE_MISMATCH"),
    ("user-exception", r"(ValueError|OSError|FileNotFoundError|StopIteration|exited unexpectedly|No space left)"),
    ("gpu-oom", r"OutOfMemoryError|out of memory"),
    ("shm-too-small", r"shared memory|Bus error"),
    ("unused-parameters", r"Expected to have finished reduction"),
    ("filesystem-race", r"FileNotFoundError|does not exist"),
    ("launcher-misuse", r"environment variable \w+ expected"),
    ("fd-exhaustion", r"Too many open files"),
    ("rank-crashed-earlier", r"exit code -(9|6|11)\b|SIGKILL|SIGSEGV|SIGABRT"),
    ("external-signal", r"exit code -15\b|SIGTERM"),
    ("rank-exited-early", r"(?!)"),
)
_ABSENT_TEXT = r"failed to pass monitoredBarrier|missing ranks|did not join|did not respond"
_NAMED = (
    r"forkrun: rank (\d+) \(",  # as torchrun's "first observed failure"
    r"Ranks? ([\d, ]+) failed to pass",
    r"[Cc]ulprit rank (\d+)",
    r"missing ranks: \{([\d, ]+)\}",
)


def causes_in(text: str) -> frozenset[str]:
    """All causes that a text can be taken to say."""
    found = {cause for cause, pattern in SAID if re.search(pattern, text)}
    return frozenset(found | (set(ABSENT) if re.search(_ABSENT_TEXT, text) else set()))


def ranks_in(text: str) -> frozenset[int]:
    """All ranks that a text singles out; of the pairs that DETAIL tells of a mismatch, the one that most ranks point to."""
    if pairs := Counter(re.findall(r"but Rank (\d+) is running", text)):
        return frozenset({int(pairs.most_common(1)[0][0])})
    found = (n for pattern in _NAMED for ranks in re.findall(pattern, text) for n in re.findall(r"\d+", ranks))
    return frozenset(map(int, found))


def lines_in(text: str) -> frozenset[tuple[str, int]]:
    """All lines of programs that a text shows."""
    python = re.findall(r'File "[^"]*?([^/"]+\.py)", line (\d+)', text)
    short = re.findall(r"([\w.-]+\.py):(\d+)", text)
    return frozenset((name, int(number)) for name, number in [*python, *short])


def score_text(truth: Truth, text: str) -> Score:
    """Judges a text by the same parts, read generously; the outcome is given, since torch does not tell it."""
    causes, ranks, lines = causes_in(text), ranks_in(text), lines_in(text)
    cause = bool(causes & set(truth.causes))
    # A mismatch is told by a pair of ranks: to be one of the two is enough.
    right = ranks == truth.ranks or (bool(truth.ranks & ranks) and len(ranks) <= 2)
    line = truth.line_rule != "required" or bool(lines & truth.lines)
    parts = {"outcome": True, "cause": cause, "ranks": right, "line": line}
    if all(parts.values()):
        return Score(HIT, **parts)
    if ranks and not ranks & truth.ranks:
        return Score(FALSE_ACCUSATION, **parts)
    return Score(WRONG_LINE if cause and right else UNDECIDED, **parts)


def chosen(runs: Iterable[Run], per_story: int = PER_STORY) -> list[Run]:
    """A sample of the runs with faults: as many of each story, of unlike kinds, drawn from the seed."""
    stories: dict[str, list[Run]] = defaultdict(list)
    shuffled = sorted((run for run in runs if not run.is_healthy), key=lambda run: run.name)
    random.Random(SEED).shuffle(shuffled)
    kinds = set[str]()
    for run in shuffled:
        is_straggler = run.truth is not None and run.truth.outcomes == ("straggler",)
        if len(stories[run.story]) < per_story and run.kind not in kinds and not is_straggler:
            stories[run.story].append(run)
            kinds.add(run.kind)
    return [run for story in sorted(stories) for run in stories[story]]


def run_peers(run: Run) -> list[dict[str, Any]]:
    """Runs the job without unhang, once plainly and once in DETAIL mode; a row for each peer.

    Blocks: up to two limits and the time of torchfrtrace.
    """
    rows = []
    for detail in (False, True):
        with work_folder(None) as folder:
            dumps = folder / "dumps"
            dumps.mkdir()
            wrapper = HERE / "programs" / "with_timeout.py"
            job = launched(wrapper, [str(LONGER_S.get(run.story, TIMEOUT_S)), str(dumps), str(run.program), *run.args])
            more = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if detail else {}
            more["TORCH_FR_BUFFER_SIZE"] = "2000"
            ended_s = time.time()
            done = run_limited(injected(run, folder, job), folder, _LIMIT_S, more)
            ended_s += done.seconds
            record = read_record(folder / "record.jsonl")
            text = without_injector(done.output).replace(f"{HERE.parents[1]}/", "").replace(f"{folder}/", "")
            rows.append(_row(run, "DETAIL" if detail else "torch alone", text, record, ended_s, done.exit_code))
            if not detail:
                said = frtrace(dumps, folder)
                rows.append(_row(run, "torchfrtrace", said, record, ended_s, done.exit_code))
    return rows


def without_injector(text: str) -> str:
    """The output, without what the injector says of itself."""
    return "\n".join(line for line in text.splitlines() if "[unhang] inject" not in line)


def frtrace(dumps: Path, folder: Path) -> str:
    """What torchfrtrace says about the last dumps before the end, if the job stood still in them; "" where it did not.

    A job that aborts writes no dump, and the dumps of ranks that run are not of one moment.
    """
    files: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(dumps.glob("*.*"), key=lambda path: path.stat().st_mtime_ns):
        if path.suffix != ".new":
            files[path.stem].append(path)
    if not files:
        return ""
    traces = folder / "traces"
    traces.mkdir()
    end_s = max(written[-1].stat().st_mtime for written in files.values())
    for rank, written in files.items():
        # A rank that is stopped, or holds the GIL, has written nothing for a while.
        is_silent = written[-1].stat().st_mtime < end_s - _SILENT_S
        if not is_silent and (len(written) < 3 or _position(written[-3]) != _position(written[-2])):
            return ""
        (traces / f"rank_{rank}").write_bytes(written[-1 if is_silent else -2].read_bytes())
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(traces), "--prefix", "rank_"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FRTRACE_S, cwd=folder)
    except subprocess.TimeoutExpired:
        return "no answer"
    return done.stdout + done.stderr


def _position(dump: Path) -> list[Any]:
    """The last calls of a dump."""
    return [entry["collective_seq_id"] for entry in pickle.loads(dump.read_bytes()).get("entries", [])[-20:]]


def _row(
    run: Run, tool: str, text: str, record: Sequence[Mapping[str, Any]], ended_s: float, exit_code: int | None
) -> dict[str, Any]:
    happened = [event for event in record if event["event"] == "happened"]
    assert run.truth is not None
    truth = truth_with(run.truth, record)
    spoke = exit_code is not None and exit_code != 0
    score = score_text(truth, text if spoke or tool == "torchfrtrace" else "")
    if tool == "DETAIL" and "exit code -11" in text and run.kind != "sigsegv":
        score = Score(UNDECIDED)  # the mode that is switched on for an answer ended the program first
    elif run.fault and not happened:
        score = Score(NOT_RUN)
    return {
        "name": run.name,
        "tool": tool,
        "kind": run.kind,
        "story": run.story,
        "score": asdict(score),
        "ranks": sorted(ranks_in(text)),
        "causes": sorted(causes_in(text)),
        "spoke": spoke,
        "after_s": round(ended_s - happened[0]["time_ns"] / 1e9, 1) if happened and spoke else None,
        "exit_code": exit_code,
        "text": text[-1500:],
    }
