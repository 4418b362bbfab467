"""The cases of rendezvous-endpoint."""

from __future__ import annotations

from collections.abc import Callable

from tests.rules.notation import log_case, make_case
from unhang.model import Case, Frame, ThreadStack
from unhang.testing import Fires, Quiet, path, pending

_TIMED_OUT = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a, 29500)."

_GAI = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node-a, 53821) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."

_REFUSED = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 111 - Connection refused)."

_PORTS = (
    "MASTER_PORT='37493'",
    "MASTER_PORT='45017'",
    '  File "/opt/env/lib/python3.10/site-packages/torch/distributed/rendezvous.py", line 179, in _env_rendezvous_handler',
)

_RENDEZVOUS = "/torch/distributed/rendezvous.py"

_C10D = "/site-packages/torch/distributed/distributed_c10d.py"

_INIT = {r: [pending("init_process_group", where="main:3")] for r in range(3)}


def _in_init(*above: Frame) -> ThreadStack:
    """A rank in init_process_group, for examples."""
    frames = (*above, Frame(_C10D, 1892, "init_process_group"), *path("main:3"))
    return ThreadStack("MainThread", frames, is_main=True)


_CONNECTS = _in_init(Frame(f"/site-packages{_RENDEZVOUS}", 190, "_create_c10d_store"))

_CONNECTED = _in_init(Frame(_C10D, 2169, "_new_process_group_helper"))


def _meets(*places: str) -> Callable[[], Case]:
    """Ranks in init_process_group, each looking for the others at a place."""
    inits = {r: [pending("init_process_group", where="main:3", detail=p)] for r, p in enumerate(places)}
    return make_case({}, world=3, hang="suspected", pending=inits, stacks=dict.fromkeys(range(3), _CONNECTED))


CASES = {
    "rendezvous-endpoint": (
        Fires(log_case(_TIMED_OUT), ()),
        Fires(log_case(_GAI), ()),
        Fires(log_case("ValueError: host not found: Name or service not known"), ()),
        Fires(log_case("\n".join([_REFUSED] * 6)), ()),
        Fires(
            log_case(
                "Traceback (most recent call last):\n  store = _create_tcp_store(params)\ntorch.distributed.elastic.rendezvous.api."
                "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
            ),
            (),
        ),
        Fires(
            make_case(
                {}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTED, 1: _CONNECTED, 2: _CONNECTS}
            ),
            (2,),
            3,
        ),
        Fires(_meets("10.0.0.1:4001", "10.0.0.1:4002", "10.0.0.1:4003"), (), 3),
        Fires(_meets("n0:4001", "n0:4001", "n0:29500"), (2,), 3),
        Quiet(_meets("localhost:4001", "127.0.0.1:4001", "n0:4001"), "one port, at addresses of one machine"),
        Quiet(_meets("n0:4001", "n0:4002", ""), "of a rank it is not known where it looks"),
        Quiet(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks=dict.fromkeys(range(3), _CONNECTED)),
            "all have reached the store",
        ),
        Quiet(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTS, 1: _CONNECTS, 2: _CONNECTS}),
            "nobody has reached it: which side is at fault is not told",
        ),
        Fires(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTS, 1: _CONNECTED, 2: _CONNECTS}),
            (2,),
            3,
        ),
        Quiet(
            make_case({}, world=3, hang=None, pending=_INIT, stacks={0: _CONNECTED, 1: _CONNECTED, 2: _CONNECTS}),
            "a rank that connects a moment later",
        ),
        Quiet(
            log_case(f"{_REFUSED}\nRank 0: Completed store-based barrier for key:0 with 2 nodes."),
            "a retry that succeeded",
        ),
        Quiet(log_case(f"{_GAI}\nstep 10 loss 2.13"), "the other address family resolved, and training began"),
        Quiet(
            log_case(
                "    num_nodes_waiting = rdzv_handler.num_nodes_waiting()\ntorch.distributed.elastic.rendezvous.api."
                "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
            ),
            "an agent that lost the store of another agent, which ended before it",
        ),
        Fires(log_case("\n".join(_PORTS)), ()),
        Quiet(log_case("\n".join((_PORTS[0], "$ python train.py", *_PORTS[1:]))), "a second start on another port"),
    ),
}
