"""The cases of no-tracing."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "no-tracing": (
        Fires(readings_case(read("machine.tracing", scope=3, problem="Operation not permitted")), ()),
        Quiet(readings_case(read("machine.tracing", scope=1, has_capability=False, problem="")), "the usual setting"),
        Quiet(readings_case(read("machine.tracing", scope=2, has_capability=True, problem="")), "root may"),
    ),
}
