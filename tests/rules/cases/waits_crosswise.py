"""The cases of waits-crosswise."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.cases.rank_lags import counted
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LOST = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/w/trainer.py", line {1}, in step
[rank{0}]:     dist.all_gather(gathered, local, group=group)
[rank{0}]:   File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3949, in all_gather
[rank{0}]:     work.wait()
[rank{0}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.20.3.14]:41822
"""
_HEARD = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective timeout from  "
    "rank 2 and we will try our best to dump the debug info. Last enqueued NCCL work: {1}, last completed NCCL work: 77.\n"
)
_WAITS = timeouts(*((r, 78, "BROADCAST", 80) for r in (1, 2, 3))) + "\n"
_COUNTED = counted((1, 79, 77), (2, 79, 77), (3, 79, 77)) + "\n"

CASES = {
    "waits-crosswise": (
        Fires(log_case(_WAITS + _COUNTED + _HEARD.format(0, 77) + _LOST.format(0, 580)), (0,)),
        Quiet(
            log_case(_WAITS + _COUNTED + _HEARD.format(5, 77) + _LOST.format(5, 580)),
            "a rank is in neither call: it may be the one that both wait for",
        ),
        Quiet(
            log_case(_WAITS + _COUNTED + _HEARD.format(0, 79) + _LOST.format(0, 580)),
            "they had come to the call as well: what they lost is an echo",
        ),
        Quiet(
            log_case(
                _WAITS
                + _COUNTED
                + _HEARD.format(0, 77)
                + _HEARD.format(4, 77)
                + _LOST.format(0, 580)
                + _LOST.format(4, 600)
            ),
            "they lost their peers in different places",
        ),
    ),
}
