"""The cases of straggler."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.rules.notation import make_case
from unhang import testing as notation
from unhang.model import CallState, Case, CollectiveTable
from unhang.testing import Fires, Quiet


def _late_case(lateness_ms: int, start_s: int = 0, stall_s: int = 0) -> Case:
    """Rank 2 comes late to every call. `start_s`: how long the first call takes; `stall_s`: of rank 2, once."""
    case = notation.make_case({r: ["all_reduce[8]@main:10"] * 12 for r in range(4)}, hang=None, exit_code=0)
    columns = dict(case.calls.columns)
    created = columns["created_ns"] + columns["seq"] * lateness_ms * 1_000_000
    created[columns["rank"] == 2] += lateness_ms * 900_000
    created[columns["seq"] == 1] -= start_s * 1_000_000_000
    created[columns["seq"] > 6] += stall_s * 1_000_000_000
    created[(columns["rank"] == 2) & (columns["seq"] == 6)] += stall_s * 1_000_000_000
    columns["created_ns"] = created
    columns["state"] = columns["state"] * 0 + CallState.COMPLETED
    return replace(
        case,
        calls=CollectiveTable(
            columns,
            case.calls.groups,
            case.calls.ops,
            case.calls.sizes,
            case.calls.dtypes,
            case.calls.stacks,
            case.calls.threads,
        ),
    )


CASES = {
    "straggler": (
        Fires(partial(_late_case, 350), (2,)),
        Fires(partial(_late_case, 350, start_s=28), (2,)),
        Quiet(partial(_late_case, 20, stall_s=28), "one stall is no habit"),
        Quiet(partial(_late_case, 20), "a few milliseconds are no fault"),
        Quiet(make_case({r: ["all_reduce[8]@main:10"] * 12 for r in range(4)}, hang=None, exit_code=0), "an even job"),
    ),
}
