"""Of a wait whose end somebody of the job keeps, the first fix is the change that ends it; the sound program beside it runs through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .faults import Case
from .harness import check_fault, check_healthy, run_job

PROGRAM = "programs/keeps.py"
_FIRST = {
    "stream": "with session.get(url, stream=True) as page:",
    "imports": "    with ThreadPoolExecutor(1) as pool:\n        return list(pool.map(rows, range(3)))",
    "items": "self.free.put(buffer)",
    "told": "finally: ready.set()",
    "nested": "POOL_inner = ThreadPool(2)",
    "forked": "os.register_at_fork(after_in_child=lambda: globals().update(HELD=threading.Lock()))",
    "done": "finally: items.task_done()",
    "parties": "gate = threading.Barrier(3)",
    "tasks": "async with session.get(url) as page:",
    "twice": "the caller at keeps.py:",
    "lock": "rank 0 has the lock since line",
    "dataset": "with a further argument: timeout=(10, 60)",
}
_QUICK = ("stream", "imports")
_KINDS = [k if k in _QUICK else pytest.param(k, marks=pytest.mark.whole) for k in _FIRST]


def _job(which: str, *args: str, **more: Any) -> Case:
    return Case(f"keeps-{which}", PROGRAM, (which, *args), ranks=3, **more)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_first_fix_ends_the_wait(kind: str, tmp_path: Path) -> None:
    files = ("keeps_in_body.py",) if kind == "imports" else ()
    job = _job(
        kind,
        cause="rank-stuck-in-user-code",
        culprits=(1, 2) if kind == "lock" else (1,),
        lines=(f"# {kind}",),
        kind=None,
        files=files,
    )
    result = run_job(job, tmp_path)
    check_fault(job, result)
    assert _FIRST[kind] in result.report["findings"][0]["fixes"][0]["advice"], result


def test_a_process_that_raised_and_waits_for_its_thread(tmp_path: Path) -> None:
    job = _job("ends", cause="user-exception", culprits=(1,), lines=("# raises",), kind=None)
    result = run_job(job, tmp_path)
    check_fault(job, result)
    titles = [fix["title"] for fix in result.report["findings"][0]["fixes"]]
    assert titles[0].startswith("Let the thread end with the process"), result
    assert titles[1].startswith("Fix what raised it"), result
    assert (
        "threading.Thread(target=make, args=(batches,), daemon=True)"
        in result.report["findings"][0]["fixes"][0]["advice"]
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_the_sound_program_runs_through(kind: str, tmp_path: Path) -> None:
    check_healthy(run_job(_job(kind, "sound", abort_after_s=None), tmp_path, limit_s=90))
