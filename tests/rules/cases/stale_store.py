"""The cases of stale-store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.rules.notation import log_case
from unhang import testing
from unhang.model import Case, Frame, ThreadStack
from unhang.testing import Fires, Quiet, ended

_WAITING = (
    "Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 "
    "(world_size=4, worker_count={}, timeout=0:01:00)"
)
_REFUSED = (
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: Connection refused, remote=[127.0.0.1]:53658$0@main:3"
)
_RAISED = "OSError: stale file handle@main:9"


def _started(attempt: int, errors: dict[int, str], world: int = 4, **more: object) -> Case:
    """An attempt whose ranks are in init_process_group, but for the first one, which got further."""
    case = testing.make_case(world=world, hang=None, exit_code=1, errors=errors, **more)
    ranks = {r: replace(e, initialized=attempt == 0) for r, e in case.ranks.items()}
    return replace(case, ranks=ranks, attempt=attempt)


def _again(errors: dict[int, str], world: int = 4, own_store: bool = False, **more: object) -> Callable[[], Case]:
    """The second attempt, after one of which nothing tells why it ended."""

    def made() -> Case:
        case = _started(1, errors, world, **more)
        job = replace(case.job, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if own_store else {})
        return replace(case, job=job, earlier=(_started(0, {}),))

    return made


def _connecting(*elsewhere: int) -> Callable[[], Case]:
    """The second attempt hangs where gloo connects the ranks; `elsewhere`: not these."""

    def made() -> Case:
        place = Frame("/lib/torch/distributed/distributed_c10d.py", 2169, "_new_process_group_helper")
        init = Frame("/lib/torch/distributed/distributed_c10d.py", 1899, "init_process_group")
        mine = Frame("train.py", 3, "main")
        there, late = (ThreadStack("MainThread", f, is_main=True) for f in ((place, init, mine), (mine,)))
        stacks = {r: late if r in elsewhere else there for r in range(4)}
        case = testing.make_case(hang="suspected", stacks=stacks)
        return replace(case, attempt=1, earlier=(_started(0, {}),))

    return made


def _making_a_group(*elsewhere: int, holder: int | None = None) -> Callable[[], Case]:
    """Ranks 0 and 2 are where gloo connects a group of both, rank 1 is in one of its own; `elsewhere`: not these. `holder`: a thread of it waits for a key."""

    def made() -> Case:
        place = Frame("/lib/site-packages/torch/distributed/distributed_c10d.py", 2169, "_new_process_group_helper")
        mine = Frame("train.py", 3, "main")
        there, late = (ThreadStack("MainThread", f, is_main=True) for f in ((place, mine), (mine,)))
        calls = {r: [testing.pending("new_group", index=1, detail="0,2", where="main:3")] for r in (0, 2)}
        calls[1] = [
            testing.pending("new_group", done=True, index=1, detail="0,2", where="main:3"),
            testing.pending("new_group", index=2, detail="1", where="main:3"),
        ]
        waits = {r: c for r, c in calls.items() if r not in elsewhere}
        if holder is not None:
            waits[holder] = [
                *waits[holder],
                testing.pending("store_wait", index=5, detail="control/2", where="listen:26"),
            ]
        stacks = {r: late if r in elsewhere else there for r in range(3)}
        return testing.make_case(world=3, hang="suspected", pending=waits, stacks=stacks)

    return made


CASES = {
    "stale-store": (
        Fires(log_case("\n".join(_WAITING.format(r, 16) for r in (0, 1))), ()),
        Fires(_making_a_group(), (), 3),
        Fires(_making_a_group(holder=0), (0,), 26, cause="rank-stuck-in-user-code"),
        Fires(log_case(f"File already exists: output.tmp/dist_init\n{_WAITING.format(0, 8)}"), ()),
        Fires(_again({0: _REFUSED}, exits={r: ended("signal", -15, at_s=12) for r in (2, 3)}), ()),
        Quiet(_making_a_group(2), "a member of the group has not come"),
        Quiet(log_case(_WAITING.format(0, 3)), "not all came yet"),
        Quiet(log_case(_WAITING.format(5, 8)), "a rank outside of the world: two launchers"),
        Quiet(log_case(f"{_WAITING.format(0, 8)}\nepoch 1 step 1 loss 3.1"), "the start went on"),
        Quiet(lambda: _started(0, {0: _REFUSED}), "a first start: no address is older than it"),
        Quiet(_again({0: _REFUSED}, own_store=True), "each attempt has a store of its own"),
        Quiet(_again({0: _REFUSED, 2: _RAISED}), "a rank of this attempt had failed before"),
        Quiet(_again({0: _REFUSED}, world=3), "fewer ranks than before: others are asked for their addresses"),
        Fires(_connecting(), ()),
        Quiet(_connecting(2), "one rank is still on its way to the start"),
    ),
}
