"""The cases of waits-ended-apart."""

from __future__ import annotations

import re

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_TRACE = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/app/train.py", line {1}, in {2}
[rank{0}]:     work()
[rank{0}]:   File "/opt/torch/distributed/distributed_c10d.py", line 3252, in {3}
[rank{0}]:     work.wait()
[rank{0}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete
"""

_SAVE, _STEP = (_TRACE.format(r, n, f, c) for r, n, f, c in ((0, 9, "save", "barrier"), (1, 30, "step", "all_reduce")))

_LOOSE = re.compile(r"^\[rank\d\]: ", re.MULTILINE)

CASES = {
    "waits-ended-apart": (
        Fires(log_case(_SAVE + _STEP + _STEP.replace("[rank1]", "[rank2]")), (0,)),
        Fires(log_case(_LOOSE.sub("", _SAVE + _STEP)), ()),
        Quiet(log_case(_STEP + _STEP.replace("[rank1]", "[rank2]")), "they wait in the same call: somebody is missing"),
        Quiet(log_case(_LOOSE.sub("", _SAVE.replace("barrier", "broadcast") + _STEP)), "a root may go ahead"),
        Quiet(log_case(_SAVE), "one rank alone"),
        Quiet(log_case("[rank2]: ValueError: bad sample\n" + _SAVE + _STEP), "a rank failed before"),
    ),
}
