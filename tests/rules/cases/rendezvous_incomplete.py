"""The cases of rendezvous-incomplete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.rules.notation import log_case, make_case
from unhang.model import Case, Frame, ThreadStack
from unhang.testing import Fires, Quiet, ended, pending

_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:{} "
    "(world_size=2, worker_count={}, timeout=0:10:00)"
)

_CLIENTS = "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined."

_MEMBER = "initializing ddp: GLOBAL_RANK: {}, MEMBER: {}/4"

_WAITS = (
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 1, "
    "key: store_based_barrier_key:1 (world_size=4, worker_count=1, timeout=0:30:00)"
)

_INIT = {r: [pending("init_process_group", where="main:3")] for r in (0, 1, 2)}

_DONE = pending("init_process_group", done=True, where="main:3")
_AGAIN = {
    r: [_DONE, *([pending("init_process_group", index=2, where="main:3")] if r < 3 else [])] for r in range(4)
}  # a group that is made anew

_OWN = "+ torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={}:29500 train.py\ntorch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"

_LAUNCH = Path(__file__).parents[1] / "launchers" / "launch.py"


def _launchers(*ids: str) -> Callable[[], Case]:
    """The program that starts the launchers waits for them, and these for each other, under these ids."""

    def made() -> Case:
        case = make_case({}, world=0, hang="suspected", launcher="~rendezvous")()
        waits = ThreadStack("MainThread", (Frame(str(_LAUNCH), 11, "start"),), is_main=True)
        launchers = [replace(case.launcher_stacks[0], name=f"MainThread start {x}") for x in ids]
        return replace(case, launcher_stacks=(waits, *launchers))

    return made


_OF_XLA = (
    "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: {}. Timed out task names:\n"
    "/job:jax_worker/replica:0/task:1\n/job:jax_worker/replica:0/task:3\n"
)

CASES = {
    "rendezvous-incomplete": (
        Fires(log_case(_OF_XLA.format("PjRT_Client_Connect")), (1, 3)),
        Fires(log_case(_OWN.format("127.0.0.1")), (), cause="rendezvous-endpoint"),
        Fires(log_case(_OWN.format("node-0")), (), cause="rendezvous-incomplete"),
        Fires(make_case({}, hang="suspected", pending=_INIT, absent=(3,)), (3,)),
        Fires(
            make_case({}, hang="suspected", pending=_INIT, stacks={3: "main:2"}, more={3: {"initialized": False}}),
            (3,),
            2,
        ),
        Fires(make_case({}, hang="suspected", pending=_AGAIN, stacks={3: "main:2"}), (3,), 2),
        Fires(make_case({}, world=6, hang="suspected", pending=_INIT, absent=(3,), out_of_sight=(4, 5)), (3,)),
        Quiet(
            make_case({}, hang="suspected", pending=_INIT, out_of_sight=(3,)), "a rank of another node may have come"
        ),
        Fires(make_case({}, world=0, hang="suspected", launcher="~rendezvous"), ()),
        Fires(
            make_case({}, world=2, hang="suspected", launcher="~rendezvous", exits={r: ended("exit") for r in (0, 1)}),
            (),
        ),
        Fires(_launchers("a1", "b2"), (), 10),
        Fires(_launchers("a1", "a1"), ()),
        Fires(log_case(_BARRIER.format(1, 1)), (1,)),
        Fires(log_case(_BARRIER.format(32, 1)), (1,)),
        Fires(log_case(_CLIENTS), ()),
        Fires(
            log_case(
                "+ torchrun --nnodes 2 --node_rank 0 --nproc_per_node 4 train.py\n" + _CLIENTS.replace("1/3", "1/2")
            ),
            (4, 5, 6, 7),
        ),
        Fires(
            log_case(
                "+ torchrun --nnodes 2 --node_rank $R --nproc_per_node 4 train.py\n" + _CLIENTS.replace("1/3", "1/2")
            ),
            (),
        ),
        Fires(log_case("\n".join(_MEMBER.format(r, r + 1) for r in (1, 0))), (2, 3)),
        Fires(log_case("\n".join([*(_MEMBER.format(r, r + 1) for r in (0, 1)), _WAITS])), (2, 3)),  # 0 has begun, too
        Fires(log_case("node-a: launching\npdsh@node-a: node-b: ssh exited with exit code 255"), ()),
        Fires(log_case("node-b: Host key verification failed."), (), cause="launcher-misuse"),
        Fires(
            log_case(
                "node-b: u@node-b: Permission denied (gssapi-keyex,publickey,password).\n"
                "pdsh@node-a: node-b: ssh exited with exit code 255"
            ),
            (),
            cause="launcher-misuse",
        ),
        Fires(log_case("ssh: connect to host node-b port 22: No route to host"), (), cause="rendezvous-incomplete"),
        Quiet(
            log_case(
                "node-b: step 10 loss 2.1\nnode-b: step 20 loss 2.0\npdsh@node-a: node-b: ssh exited with exit code 255"
            ),
            "after a step, a session ends with its job",
        ),
        Quiet(log_case("\n".join([*(_MEMBER.format(r, r + 1) for r in range(4)), "All came"])), "all came"),
        Quiet(log_case(_BARRIER.format(1, 3)), "more than expected: another cause"),
        Quiet(
            log_case("ValueError: bad config\n" + _CLIENTS.replace("1/3", "3/3")),
            "all came",
        ),
        Quiet(
            make_case(
                {}, pending={r: [pending("init_process_group", done=True)] for r in range(4)}, hang=None, exit_code=0
            ),
            "all came",
        ),
    ),
}
