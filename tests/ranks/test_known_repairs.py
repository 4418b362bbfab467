"""Of a wait whose end somebody of the same process keeps, the first fix is the change that ends it; the sound program beside it runs through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .faults import Case
from .harness import Result, check_fault, check_healthy, run_job

PROGRAM = "programs/keeps.py"
_WHOLE = ("items", "told", "nested", "forked", "done", "parties", "dataset", "ends")


def _job(which: str, *args: str, **more: Any) -> Case:
    return Case(f"keeps-{which}", PROGRAM, (which, *args), ranks=3, **more)


def _first(result: Result) -> dict[str, Any]:
    return dict(result.report["findings"][0])


@pytest.mark.parametrize(
    ("kind", "line", "fix"),
    [
        ("stream", "# stream leaves", "with session.get(url, stream=True) as page:"),
        ("imports", "# imports", "def made():"),
        ("items", "# items", "self.free.put(buffer)"),
        ("told", "# told", "finally: ready.set()"),
        ("nested", "# nested", "POOL_inner"),
        ("forked", "# forked", "os.register_at_fork(after_in_child=lambda: globals().update(HELD=threading.Lock()))"),
        ("done", "# done", "finally: items.task_done()"),
        ("parties", "# parties", "gate = threading.Barrier(3)"),
        ("dataset", "# dataset", ""),
        ("ends", "# raises", "threading.Thread(target=make, args=(batches,), daemon=True)"),
    ],
)
def test_the_first_fix_ends_the_wait(kind: str, line: str, fix: str, tmp_path: Path) -> None:
    cause = "user-exception" if kind == "ends" else "rank-stuck-in-user-code"
    more = {} if kind != "imports" else {"files": ("keeps_in_body.py",)}
    case = _job(kind, cause=cause, culprits=(1,), lines=(line,), kind=None, location="ignored", **more)
    result = run_job(case, tmp_path)
    print(result)
    for f in result.report["findings"][:2]:
        print("FOUND", f["cause"], f["title"], f["location"])
        for x in f["fixes"][:2]:
            print("FIX", x["title"], "\n", x.get("advice"))
    check_fault(case, result)
    first = _first(result)["fixes"][0]
    assert fix in first.get("advice", ""), result


@pytest.mark.parametrize("kind", ["stream", "imports", *(pytest.param(k, marks=pytest.mark.whole) for k in _WHOLE)])
def test_the_sound_program_runs_through(kind: str, tmp_path: Path) -> None:
    result = run_job(_job(kind, "sound", abort_after_s=None), tmp_path, limit_s=90)
    if kind == "ends":
        assert result.report["outcome"] == "crash", result
        return
    check_healthy(result)
