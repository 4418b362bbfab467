"""Every fault really happens, at the line that the record tells, and `unhang run` names its cause, its rank and its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from unhang.inside.inject import FAULTS

from .jobs import Done, inject, job, line_of

HUNG_JOB_ENDED = 124
_REDUCE, _BROADCAST, _STEP = "dist.all_reduce(loss)", "dist.broadcast(setting", "optimizer.step()"
_LOADER, _WRITE, _INIT = "in enumerate(loader)", 'open(f"metrics', "dist.init_process_group("


@dataclass(frozen=True)
class Case:
    """A fault and where it strikes.

    `found_at`: lines that are a right answer beside the one that is struck; None where no line can be demanded.
    """

    fault: str
    at: str
    found_at: tuple[str, ...] | None = ()
    workers: int = 0

    def __str__(self) -> str:
        return self.fault


HANGS = [
    Case("skip_collective:rank=1,call=5", _REDUCE),
    Case("extra_collective:rank=1,call=5", _REDUCE),
    Case("reorder_collective:rank=1,call=5", _BROADCAST, (_REDUCE,)),
    Case("wrong_group:rank=1,call=5", _REDUCE),
    Case("swallowed_exception:rank=1,call=5", _REDUCE),
    # The rank is in the next new_group, and the others in the one that it left out.
    Case("subgroup_not_created_by_all:rank=2,call=1", "dist.new_group(list(", ("other = dist.new_group",)),
    Case("two_threads_one_group:rank=1,call=5", _REDUCE),
    Case("p2p_cycle:call=5", _REDUCE),
    Case("p2p_wrong_peer:rank=1,call=3", "dist.isend(border"),
    # Where the rank is now, and the loop that it left.
    Case("data_exhausted:rank=1,batch=6", _LOADER, ("dist.barrier()",)),
    Case("stuck_loader:rank=2,batch=3", _LOADER),
    Case("stuck_worker:rank=1,batch=3", _LOADER, workers=1),
    Case("sigstop:rank=1,step=2", _STEP),
    Case("leaked_lock:rank=1,step=2", _STEP),
    Case("endless_loop:rank=0,step=2", _STEP),
    Case("gil_held:rank=1,step=2", _STEP),
    Case("shutdown_hang:rank=1,step=2", _STEP, None),
    Case("slow_save", "torch.save("),
    Case("stuck_checkpoint:rank=2,call=3", _WRITE),
]
CRASHES = [
    # gloo aborts where the reduction of the gradients meets another one.
    Case("nan_batch:rank=1,batch=3", _LOADER, ("loss.backward()", "torch.isfinite(loss)")),
    Case("wrong_shape:rank=1,call=5", _REDUCE),
    Case("wrong_dtype:rank=1,call=5", _REDUCE),
    Case("sigkill:rank=1,step=2", _STEP, None),
    Case("sigabrt:rank=1,step=2", _STEP, None),
    Case("sigterm:rank=1,step=2", _STEP, None),
    Case("early_exit:rank=1,step=2", _STEP),
    Case("rank_raises:rank=1,step=2", _STEP),
    Case("oom:rank=1,step=2", "loss = (model("),
    Case("fd_limit:rank=1,step=2", _STEP, (_WRITE,)),
    Case("failing_disk:rank=1", _WRITE),
    # The rank hears of its worker's end wherever it happens to be.
    Case("shm_exhausted:rank=1,batch=3", _LOADER, None, workers=1),
    Case("worker_dies:rank=1,batch=3", _LOADER, None, workers=1),
]


# The rest of the table takes minutes: `make bench` runs it whole.
QUICK = ("skip_collective", "p2p_cycle", "stuck_loader", "sigstop", "slow_save", "sigkill", "rank_raises")


def shared_out(cases: Sequence[Case]) -> list[object]:
    """The cases; those that `make test` leaves out are marked."""
    return [
        pytest.param(case, id=str(case), marks=() if case.fault.partition(":")[0] in QUICK else pytest.mark.whole)
        for case in cases
    ]


def check_happened(done: Done, faults: Sequence[str], at: str | None = None) -> None:
    """Every fault is in the record, and struck where it should."""
    assert [e["fault"] for e in done.record if e["event"] == "happened"], done
    assert {e["fault"] for e in done.record} == {f.partition(":")[0] for f in faults}, done
    assert "never happened" not in done.stderr, done
    if at is not None and done.record[0]["file"] is not None:
        assert {(Path(e["file"]).name, e["line"]) for e in done.record} == {("training.py", line_of(at))}, done


def check_found(done: Done, case: Case) -> None:
    """The report tells the truth about the fault."""
    fault = FAULTS[case.fault.partition(":")[0]]
    assert done.report["findings"], done
    first = done.report["findings"][0]
    assert first["cause"] == fault.cause, done
    assert first["rule"] in fault.found_by, done
    assert set(first["culprit_ranks"]) == {e["rank"] for e in done.record}, done
    if case.found_at is not None:
        assert first["location"]["line"] in {line_of(text) for text in (case.at, *case.found_at)}, done


@pytest.mark.parametrize("case", shared_out(HANGS))
def test_a_hang_is_found(case: Case, tmp_path: Path) -> None:
    done = inject([case.fault], job(case.workers, 1), tmp_path)
    check_happened(done, [case.fault], case.at)
    check_found(done, case)
    assert FAULTS[case.fault.partition(":")[0]].is_hang
    assert (done.report["outcome"], done.exit_code) == ("hang", HUNG_JOB_ENDED), done


@pytest.mark.parametrize("case", shared_out(CRASHES))
def test_a_crash_is_found(case: Case, tmp_path: Path) -> None:
    done = inject([case.fault], job(case.workers, 1), tmp_path)
    check_happened(done, [case.fault], None if case.workers else case.at)
    check_found(done, case)
    assert done.report["outcome"] == "crash", done
