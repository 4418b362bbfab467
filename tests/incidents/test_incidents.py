from __future__ import annotations

import io
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import incident_accuracy

from unhang.cli.main import main


@cache
def found() -> tuple[incident_accuracy.Judged, ...]:
    return tuple(incident_accuracy.judged())


def not_yet(what: str) -> set[str]:
    """The incidents of `not_yet.txt`."""
    rows = [line.split() for line in (incident_accuracy.FOLDER / "not_yet.txt").read_text().splitlines()]
    return {name for key, *names in rows if key == what for name in names}


def test_all_incidents_are_there() -> None:
    assert len(found()) == 2806


def test_what_is_right_stays_right() -> None:
    """Those in `not_yet.txt` are open; whoever mends one takes it off."""
    scored = [j for j in found() if j.is_scored and j.truth != incident_accuracy.HEALTHY]
    assert [(j.name, j.truth, j.cause) for j in scored if j.cause != j.truth and j.name not in not_yet("cause")] == []
    named = [j for j in scored if j.culprits is not None and j.name not in not_yet("ranks")]
    assert [(j.name, j.culprits, j.ranks) for j in named if j.ranks != j.culprits] == []


def test_the_lists_are_short() -> None:
    assert (len(not_yet("cause")), len(not_yet("ranks")), len(not_yet("accused"))) <= (274, 175, 25)


def test_a_healthy_log_accuses_nobody() -> None:
    healthy = [j for j in found() if j.truth == incident_accuracy.HEALTHY]
    assert len(healthy) == 323
    assert [(j.name, j.cause) for j in healthy if j.diagnosis.findings] == []


def test_no_rule_fails_on_any_of_them() -> None:
    assert [(j.name, o.rule, o.reason) for j in found() for o in j.diagnosis.outcomes if o.verdict == "error"] == []


def test_what_cannot_be_told_is_not_told_wrongly() -> None:
    """Incidents whose log does not hold the cause: no answer is right, a wrong one is an accusation."""
    others = [j for j in found() if not j.is_scored and j.name not in not_yet("accused")]
    assert [(j.name, j.truth, j.cause) for j in others if j.cause not in ("unknown", j.truth)] == []


def test_every_first_finding_quotes_the_log() -> None:
    for j in found():
        for finding in j.diagnosis.findings[:1]:
            assert finding.evidence, j.name
            assert any(line.line for line in finding.evidence), j.name


# What torch prints of every abort: of the watchdog, and with TORCH_SHOW_CPP_STACKTRACES=1 of any C++ error.
LIBRARY = "/usr/lib/python3/dist-packages/torch/lib"
RAISED = "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):\n"
BACKTRACES = {
    "frames": f"""{RAISED}\
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f1b2d5781b6 in {LIBRARY}/libc10.so)
frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x282 (0x7f1b2e8e5c74 in {LIBRARY}/libtorch_cuda.so)
frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f1b2e8ec7d3 in {LIBRARY}/libtorch_cuda.so)
frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f1b2e8ee6ed in {LIBRARY}/libtorch_cuda.so)
frame #4: <unknown function> + 0xdc253 (0x7f1b845b0253 in /lib/x86_64-linux-gnu/libstdc++.so.6)
frame #5: clone + 0x44 (0x7f1b8ddada04 in /lib/x86_64-linux-gnu/libc.so.6)
""",
    "symbols": f"""{RAISED}\
C++ CapturedTraceback:
#4 std::_Function_handler<std::string (), c10::SetStackTraceFetcher(std::function<std::string ()>)::{{lambda()#1}}>::_M_invoke(std::_Any_data const&) from Logging.cpp:0
#5 c10::Error::Error(c10::SourceLocation, std::string) from ??:0
#6 c10d::ProcessGroupNCCL::watchdogHandler() from ??:0
#7 c10d::ProcessGroupNCCL::ncclCommWatchdog() from ??:0
#8 execute_native_thread_routine from thread.o:0
#9 start_thread from ./nptl/pthread_create.c:442
#10 __clone3 from ./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S:83
""",
}
PLACES = ("before", "inside", "behind")
_LABEL = re.compile(r"\d+: |[\w.-]+ +\| ")
# Also behind a label.
_OF_A_TRACEBACK = re.compile(r'^\s|\] (?:Traceback \(most|  File "|    \S)')


def with_backtrace(log: str, backtrace: str, place: str) -> str:
    """The log with a backtrace between two of its lines, under the prefix of a launcher or container if all of them have one."""
    lines = log.rstrip("\n").split("\n")
    labels = [_LABEL.match(line) for line in lines if line]
    prefix = labels[0][0] if all(labels) and labels[0] is not None else ""
    at = {"before": 0, "inside": len(lines) // 2, "behind": len(lines)}[place]
    while 0 < at < len(lines) and any(_OF_A_TRACEBACK.search(line) for line in lines[at - 1 : at + 1]):
        at += 1
    added = [prefix + line for line in backtrace.rstrip("\n").split("\n")]
    return "\n".join([*lines[:at], *added, *lines[at:], ""])


WAYS = [(backtrace, place) for backtrace in BACKTRACES for place in PLACES]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.whole) for part in range(1, 4))])
def test_a_backtrace_of_cpp_changes_no_verdict(part: int) -> None:
    """In each incident at one of three places; all of them in all ways: `benchmarks/disguises.py`.

    A log of two lines has no inside: what stands next to each other there is what it tells.
    """
    changed = []
    for i, j in enumerate(found()[part::4]):
        backtrace, place = WAYS[i % len(WAYS)]
        log = json.loads((incident_accuracy.FOLDER / f"{j.name}.json").read_text())["log"]
        if place == "inside" and log.strip("\n").count("\n") < 2:
            continue
        first = incident_accuracy.diagnosed(with_backtrace(log, BACKTRACES[backtrace], place)).findings[:1]
        said = (first[0].cause, first[0].culprit_ranks) if first else ("unknown", ())
        if said != (j.cause, j.ranks):
            changed.append((j.name, (j.cause, j.ranks), said))
    assert changed == []


ABORT = json.loads((incident_accuracy.FOLDER / "056.json").read_text())["log"]


def told(path: Path | str, report: Path) -> dict[str, Any]:
    assert main(["diagnose", str(path), "--format", "json", "--output", str(report)]) == 1
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("name", ["job.log", "slurm-4711.out", "rank_11.log", "attempt_0/11/stderr.log"])
@pytest.mark.parametrize("more", ["", BACKTRACES["frames"]], ids=["as printed", "with frames"])
def test_the_log_of_an_abort_is_a_log_whatever_its_name(tmp_path: Path, name: str, more: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{ABORT}\n{more}")
    report = told(path, tmp_path / "report.json")
    assert (report["outcome"], report["findings"][0]["rule"]) == ("hang", "timeout-unexplained")
    assert "rank 11 waited in ALLREDUCE #52" in report["findings"][0]["title"]
    assert not any("rank" in absent["reason"] for absent in report["inventory"]["absent"])


def test_the_log_of_an_abort_on_the_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ABORT}\n{BACKTRACES['frames']}".encode())))
    assert "rank 11 waited in ALLREDUCE #52" in told("-", tmp_path / "report.json")["findings"][0]["title"]


def test_the_log_of_an_abort_is_explained_and_its_variables_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{ABORT}\n{BACKTRACES['frames']}NCCL INFO NCCL_DEBUG set by environment to INFO.\n")
    assert main(["explain", str(path)]) == 0
    assert "watchdog.timeout" in capsys.readouterr().out
    assert main(["env", str(path)]) == 0
    assert "1 setting" in capsys.readouterr().out
