"""The cases of not-in-sight."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet, pending

_OPEN = ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"]

_LOST = "RuntimeError: Connection closed by peer [10.0.0.2]:4242@main:10"

CASES = {
    "not-in-sight": (
        Fires(make_case(dict.fromkeys((0, 1), _OPEN), out_of_sight=(2, 3), hang="suspected"), ()),
        Fires(
            make_case({}, world=2, pending={0: [pending("init_process_group", where="main:3")]}, out_of_sight=(1,)), ()
        ),
        Fires(make_case({}, errors={0: _LOST, 1: _LOST}, out_of_sight=(2, 3), hang=None, exit_code=1), ()),
        Quiet(
            make_case({**dict.fromkeys((0, 1), _OPEN), 2: _OPEN[:1]}, out_of_sight=(3,)), "a rank that is seen is late"
        ),
        Quiet(make_case(dict.fromkeys((0, 1), _OPEN), out_of_sight=(2, 3), hang=None), "a job that runs"),
        Quiet(
            make_case({}, errors={0: _LOST, 1: "ValueError: x@main:7"}, out_of_sight=(2, 3), hang=None, exit_code=1),
            "a rank that is seen failed by itself",
        ),
        Quiet(make_case({}, errors={0: _LOST, 1: _LOST}, world=2, hang=None, exit_code=1), "all ranks are seen"),
    ),
}
