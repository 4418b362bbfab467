"""The cases of unused-parameters."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_ERROR = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.@main:20"

CASES = {
    "unused-parameters": (
        Fires(make_case({}, errors={1: _ERROR}, hang=None, exit_code=1), (1,), 20),
        Quiet(make_case({}, errors={1: "ValueError: corrupt@main:20"}, hang=None, exit_code=1), "another exception"),
    ),
}
