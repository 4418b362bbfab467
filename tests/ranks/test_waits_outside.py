"""A rank that waits outside of communication is named with its line and what it waits for; one that merely works long there is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .faults import Case
from .harness import Result, check_fault, check_healthy, run_job

PROGRAM = "programs/waits.py"


def waiting(kind: str, tmp_path: Path, **more: Any) -> Result:
    """What becomes of the job whose rank 1 waits so, at the line that bears the kind as a comment."""
    case = Case(
        f"waits-{kind}",
        PROGRAM,
        (kind,),
        cause=more.pop("cause", "rank-stuck-in-user-code"),
        culprits=(1,),
        lines=more.pop("lines", (f"# {kind}",)),
        kind="suspected",
        ranks=3,
        **more,
    )
    result = run_job(case, tmp_path)
    check_fault(case, result)
    return result


def first_of(result: Result) -> dict[str, Any]:
    return dict(result.report["findings"][0])


@pytest.mark.parametrize(
    ("kind", "awaited"),
    [
        ("socket", "a socket at fetch_batch"),
        pytest.param("fifo", "the other end of a FIFO at read_features", marks=pytest.mark.whole),
        pytest.param("flock", "the lock on the file cache.lock at locked_cache", marks=pytest.mark.whole),
        pytest.param("subprocess", "a child process at convert_files", marks=pytest.mark.whole),
    ],
)
def test_a_wait_outside_of_the_process_is_named(kind: str, awaited: str, tmp_path: Path) -> None:
    result = waiting(kind, tmp_path)
    title = first_of(result)["title"]
    assert title.startswith(f"rank 1 waited for {awaited} (waits.py:"), result
    assert "never reached all_reduce #4 of default_pg" in title, result
    assert f"(waits for {awaited.partition(' at ')[0]} in " in result.stderr, result


@pytest.mark.whole
def test_a_queue_that_nobody_is_left_to_fill(tmp_path: Path) -> None:
    first = first_of(waiting("queue", tmp_path))
    assert first["title"].startswith("rank 1 waited for a queue at on_queue (waits.py:"), first
    assert "no other thread of the program is left" in first["because"]


def test_a_queue_is_followed_to_its_only_feeder(tmp_path: Path) -> None:
    result = waiting("feeder", tmp_path)
    first = first_of(result)
    assert first["title"].startswith("rank 1 waited for a socket at feed (waits.py:"), result
    assert "its thread feeder waited for a socket; the main thread at on_feeder (waits.py:" in first["because"], result
    assert "was here in its thread feeder" in (result.report_dir / "report.txt").read_text()


def test_the_thread_that_makes_the_calls_is_asked(tmp_path: Path) -> None:
    first = first_of(waiting("executor", tmp_path))
    assert first["title"].startswith("rank 1 waited for an event or condition at hold_metrics (waits.py:"), first
    assert "never reached all_reduce #4 of group" in first["title"], first
    assert "its thread ThreadPoolExecutor-0_0 waited" in first["because"], first


@pytest.mark.whole
def test_a_thread_of_a_library_is_tied_to_the_line_that_gave_it_the_work(tmp_path: Path) -> None:
    first = first_of(waiting("library", tmp_path))
    assert first["title"].startswith("rank 1 waited for a pipe at give (waits.py:"), first
    assert "its work was given to it at give (waits.py:" in first["because"], first
    assert any("given to it at give" in line["text"] for line in first["evidence"]), first


@pytest.mark.whole
def test_the_thread_that_made_the_calls_has_ended(tmp_path: Path) -> None:
    first = first_of(waiting("thread", tmp_path))
    assert "the thread that made these calls has ended" in first["because"], first


def test_the_task_that_awaits_is_named(tmp_path: Path) -> None:
    result = waiting("asyncio", tmp_path)
    first = first_of(result)
    assert first["title"].startswith("rank 1 waited for an event or condition at rollout (waits.py:"), result
    assert any("task" in line["source"] and "awaits Task-" in line["text"] for line in first["evidence"]), result


@pytest.mark.whole
def test_a_signal_handler_is_named(tmp_path: Path) -> None:
    first = first_of(waiting("signal", tmp_path))
    assert "in the handler of SIGUSR1" in first["because"], first


def test_without_any_stack_it_is_said_who_is_late(tmp_path: Path) -> None:
    result = waiting(
        "nothing",
        tmp_path,
        cause="unknown",
        location="ignored",
        environment={"UNHANG_NO_PTRACE": "1"},
    )
    first = first_of(result)
    assert "where it stood is not known: no stack could be taken" in first["title"], result


@pytest.mark.parametrize(
    "kind",
    [
        "socket",
        "executor",
        "asyncio",
        *(
            pytest.param(k, marks=pytest.mark.whole)
            for k in ("fifo", "flock", "subprocess", "feeder", "library", "signal", "nothing")
        ),
    ],
)
def test_long_work_there_is_neither_ended_nor_accused(kind: str, tmp_path: Path) -> None:
    environment = {"UNHANG_NO_PTRACE": "1"} if kind == "nothing" else {}
    case = Case(f"works-{kind}", PROGRAM, (kind, "seen"), ranks=3, abort_after_s=None, environment=environment)
    result = run_job(case, tmp_path, limit_s=90)
    check_healthy(result)
    assert "STALLED" in result.stderr, result
    assert "no hang" in result.stderr, result
