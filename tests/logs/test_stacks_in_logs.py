"""Stacks of faulthandler in files of all kinds, read by the command: beside a log's own lines, alone, and beside dumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dumps.small_dumps import STARTED, call, job
from unhang.cli.main import main

THREADS = """\
Thread 0x00007f01 [loader] (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/app/watch.py", line 3 in run

Thread 0x00007f02 [python] (most recent call first):
{}
  File "/app/train.py", line 12 in main
"""
REDUCES = '  File "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3075 in all_reduce'
OWN_CODE = '  File "/app/train.py", line 77 in decode'
FATAL = "Fatal Python error: {}\n\n{}\nExtension modules: numpy._core, torch._C (total: 2)\n"
TIMED_OUT = (
    "[rank{0}]:[E609 22:13:03.373617731 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group watchdog thread "
    "terminated with exception: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=8, "
    "NumelOut=8, Timeout(ms)=600000) ran for 600077 milliseconds before timing out.\n"
)
Files = dict[str, str]


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What `unhang diagnose` says of a folder with these files; `dumps`: with dumps of four ranks, where rank 3 made no sixth call."""

    def judged(files: Files, dumps: bool = False) -> dict[str, Any]:
        folder = tmp_path / "given"
        folder.mkdir()
        if dumps:
            calls = {r: [call("all_reduce") for _ in range(5)] for r in range(4)}
            job({r: [*c, call("all_reduce", state=STARTED)] if r != 3 else c for r, c in calls.items()}).write(folder)
        for name, text in files.items():
            (folder / name).write_text(text)
        given = [folder] if len(files) > 1 or dumps else folder.iterdir()
        main(["diagnose", *map(str, given), "--format", "json", "--output", str(tmp_path / "report.json")])
        found: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        return found

    return judged


def first(found: dict[str, Any]) -> tuple[str, list[int], int | None]:
    finding = found["findings"][0]
    return finding["cause"], finding["culprit_ranks"], (finding["location"] or {}).get("line")


def of_ranks(name: str, make: Callable[[int], str]) -> Files:
    return {name.format(rank): make(rank) for rank in range(4)}


def stack(rank: int) -> str:
    return THREADS.format(OWN_CODE if rank == 3 else REDUCES)


def test_a_rank_s_own_stacks_are_taken_from_a_file_of_its_name(report: Callable[..., dict[str, Any]]) -> None:
    found = report({"rank_3_stacks.txt": stack(3)})
    assert found["inventory"]["present"] == ["stacks of 1 rank (faulthandler)"]
    assert (found["outcome"], found["findings"]) == ("unknown", []), (
        "the stack of a moment does not show that all is well"
    )


@pytest.mark.parametrize("name", ["rank_{}_stacks.txt", "stacks_{}.txt", "faulthandler.{}"])
def test_stacks_of_all_ranks_tell_who_did_not_come(report: Callable[..., dict[str, Any]], name: str) -> None:
    assert first(report(of_ranks(name, stack))) == ("rank-stuck-in-user-code", [3], 77)


@pytest.mark.parametrize("name", ["slurm-4711.out", "stderr.log", "faulthandler-27372.txt"])
def test_a_file_of_nobody_s_stacks_says_so_and_is_read_as_a_log(
    report: Callable[..., dict[str, Any]], name: str
) -> None:
    found = report({name: FATAL.format("Segmentation fault", stack(3))})
    (absent,) = [a for a in found["inventory"]["absent"] if "whose stacks" in a["what"]]
    assert absent["reason"].endswith("name the file like rank_3_stacks.txt")
    assert (found["outcome"], found["findings"][0]["culprit_ranks"]) == ("crash", [])
    assert "Segmentation fault" in str(found["findings"][0]["evidence"])


@pytest.mark.parametrize("name", ["rank_{}.log", "attempt_0-rank{}.err"])
def test_stacks_in_logs_of_ranks_that_hung(report: Callable[..., dict[str, Any]], name: str) -> None:
    """All were aborted by their watchdogs: that is the end of the wait, and no crash."""
    found = report(
        of_ranks(name, lambda r: (TIMED_OUT.format(r) if r != 3 else "step 5\n") + FATAL.format("Aborted", stack(r)))
    )
    assert (found["outcome"], first(found)) == ("hang", ("rank-stuck-in-user-code", [3], 77))


def test_stacks_in_one_log_of_ranks_that_print_at_the_same_time(report: Callable[..., dict[str, Any]]) -> None:
    lines = [[f"[rank{r}]: {line}" for line in stack(r).splitlines()] for r in range(4)]
    text = "\n".join(line for at_once in zip(*lines, strict=True) for line in at_once)
    assert first(report({"job.log": f"{TIMED_OUT.format(0)}{text}\n"})) == ("rank-stuck-in-user-code", [3], 77)


def test_stacks_in_a_log_say_nothing_while_nothing_says_that_the_job_hung(
    report: Callable[..., dict[str, Any]],
) -> None:
    assert report(of_ranks("rank_{}.log", lambda r: f"starting\n{stack(r)}"))["findings"] == []


def test_stacks_after_which_the_job_moved_on_tell_nothing(report: Callable[..., dict[str, Any]]) -> None:
    steps = "".join(f"step {i} loss 0.{i}\n" for i in range(1, 9))
    found = report(of_ranks("rank_{}.log", lambda r: stack(r) + steps + (TIMED_OUT.format(r) if r != 3 else "")))
    assert "rank-stuck-in-user-code" not in {f["cause"] for f in found["findings"]}


def test_a_crash_in_a_log_has_its_place(report: Callable[..., dict[str, Any]]) -> None:
    found = report({"rank_3.log": "starting\n" + FATAL.format("Segmentation fault", stack(3))})
    assert (found["outcome"], first(found)) == ("crash", ("rank-crashed-earlier", [3], 77))


@pytest.mark.parametrize("name", ["rank_3_stacks.txt", "rank_3.log"])
@pytest.mark.parametrize("reason", ["", "Aborted"])
def test_stacks_of_a_log_tell_what_the_late_rank_of_dumps_did(
    report: Callable[..., dict[str, Any]], name: str, reason: str
) -> None:
    text = FATAL.format(reason, stack(3)) if reason else stack(3)
    found = report({name: text if "stacks" in name else f"starting\n{text}"}, dumps=True)
    assert (found["outcome"], first(found)) == ("hang", ("rank-stuck-in-user-code", [3], 77))


@pytest.mark.parametrize("name", ["rank_3_stacks.txt", "rank_3.log"])
def test_a_crash_in_a_log_beside_dumps(report: Callable[..., dict[str, Any]], name: str) -> None:
    text = FATAL.format("Segmentation fault", stack(3))
    found = report({name: text if "stacks" in name else f"starting\n{text}"}, dumps=True)
    assert first(found) == ("rank-crashed-earlier", [3], 77)


WATCHDOG = TIMED_OUT.format(1)
A_DUMP = "{'version': '2.4', 'pg_config': {}, 'entries': [{'profiling_name': 'nccl:all_reduce'}]}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"flight recorder: {A_DUMP}{WATCHDOG}",
        f"(train pid=12) {A_DUMP}{WATCHDOG}",
        json.dumps({"level": "info", "entries": 12, "version": "3", "msg": "cache"})
        + "\n"
        + json.dumps({"level": "error", "msg": WATCHDOG}),
        json.dumps({"level": "error", "msg": WATCHDOG}),
    ],
    ids=["a dump's words", "in the line of a Ray actor", "lines of JSON", "one line of JSON"],
)
def test_a_log_that_speaks_of_dumps_is_none(report: Callable[..., dict[str, Any]], text: str) -> None:
    assert "rank 1 waited in ALLREDUCE #6" in report({"job.txt": text})["findings"][0]["title"]
