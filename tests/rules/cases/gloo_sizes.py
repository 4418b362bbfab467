"""The cases of gloo-sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.rules.notation import log_case
from unhang import testing
from unhang.model import Case
from unhang.testing import Fires, Quiet

_LINE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at ../gloo/transport/tcp/"
    "pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096. Received data size doesn't match expected size."
)

_EXCHANGE = {r: ["all_reduce[8]@main:10", "all_to_all[8]@main:9>forward:31 !"] for r in range(4)}


def _aborted(calls: dict[int, list[str]]) -> Callable[[], Case]:
    """A job whose calls were recorded, and that printed the line."""
    return lambda: replace(testing.make_case(calls, hang=None, exit_code=1), events=testing.log_case(_LINE).events)


CASES = {
    "gloo-sizes": (
        Fires(log_case(_LINE), ()),
        Fires(_aborted(_EXCHANGE), (), 31),
        Fires(_aborted({r: ["all_reduce[8]@main:10"] for r in range(4)}), ()),  # amid a transfer
        Quiet(_aborted({**_EXCHANGE, 2: ["all_reduce[8]@main:10"]}), "the ranks were in different calls"),
        Quiet(log_case("INFO preamble length of the message: 8192 bytes"), "no failed check"),
    ),
}
