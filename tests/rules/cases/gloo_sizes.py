"""The cases of gloo-sizes."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LINE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at ../gloo/transport/tcp/"
    "pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096. Received data size doesn't match expected size."
)

CASES = {
    "gloo-sizes": (
        Fires(log_case(_LINE), ()),
        Quiet(log_case("INFO preamble length of the message: 8192 bytes"), "no failed check"),
    ),
}
