"""The cases of collective-order-race."""

from __future__ import annotations

import linecache

from tests.rules.notation import Later, log_case, make_case
from unhang.model import Frame, ThreadStack
from unhang.testing import Fires, Quiet, path, pending

_COMM = path("~comm")
_PAIRS = {"a": (0, 1), "b": (0, 1)}

_MEAN, _COLLECT = "all_reduce[8]@main:5>mean:21", "all_gather[3]@run:48>collect:27"
_OTHER = f"{_COLLECT} thread=other"

_SAVES = """def main():
    if dist.get_rank() == 0:
        save(state, group=background)
    loss.backward()
"""


def _alone(*earlier: str) -> Later:
    """Rank 0 waits in a call of a second group, under a condition on its rank; `earlier`: what the other rank made of that group."""
    return make_case(
        {0: [*earlier, "b/all_gather[1]@main:3 !"], 1: [*earlier, "a/all_reduce[4]@main:4 !"]},
        world=2,
        groups=_PAIRS,
        source=_SAVES,
        stacks={0: "main:3>~comm", 1: "main:4>~comm"},
    )


_LOOKS = """def main():
    for step in range(1000):
        dist.all_gather(x, group=pair)
        for p in params:
            dist.all_reduce(p, group=pair)
        if loss > 3 * usual:
            dist.all_reduce(doubt)
"""


def _looks(*earlier: str, rounds: int = 5) -> Later:
    """Ranks 1 and 3 wait in a call of all ranks, under a condition on data; 0 and 2 have begun the next round, each with one of them in its pair."""
    late = {1: "all/all_reduce[1]@main:7 !", 3: "all/all_reduce[1]@main:7 !"}
    calls = {}
    for rank in range(4):
        begun, averaged = (f"{'ab'[rank > 1]}/{call}" for call in ("all_gather[4]@main:3", "all_reduce[4]@main:5"))
        calls[rank] = [
            *earlier,
            *[begun, averaged] * rounds,
            *([late[rank]] if rank in late else [begun, averaged + " !"]),
        ]
    return make_case(
        calls,
        world=4,
        groups={"all": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3)},
        source=_LOOKS,
        stacks={r: f"main:{7 if r in late else 5}>~comm" for r in range(4)},
    )


_LOCKED = """def main():
    HEAD
        dist.all_reduce(x, group=a)

def feed():
    HEAD
        dist.broadcast(x, group=b)
"""


def _locked(head: str) -> Later:
    """On rank 0 the main thread makes its call under a lock, on rank 1 the other one; each time the other thread waits for that lock."""
    file = f"/example/locked{len(head)}/train.py"
    places = {"main": (2, 3), "feed": (6, 7)}

    def thread(function: str, calls: bool) -> ThreadStack:
        frame = Frame(file, places[function][calls], function)
        return ThreadStack(function, (*_COMM, frame) if calls else (frame,), is_main=function == "main")

    stacks = {r: {"stacks": (thread("main", r == 0), thread("feed", r == 1))} for r in (0, 1)}
    text = _LOCKED.replace("HEAD", head)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return make_case(
        {0: ["a/all_reduce[4]@main:3 !"], 1: ["b/broadcast[1]@feed:7 thread=feed !"]},
        world=2,
        groups=_PAIRS,
        more=stacks,
    )


# Where TEST holds, line 6 makes the call before that of line 7.
_PREPARES = """def main():
    prepare(data)

def prepare(data):
    if TEST:
        unpack(data)
    dist.barrier(group=b)
    dist.barrier(group=a)
"""


def _prepares(test: str, earlier: str = "a/barrier@main:2") -> Later:
    """Rank 0 is in line 6, the others in line 7; `earlier`: what all made before in the group for which rank 0 waits."""
    there, on = "main:2>prepare:6", "main:2>prepare:7"
    calls = {0: [earlier, f"a/barrier@{there} !"], **{r: [earlier, f"b/barrier@{on} !"] for r in (1, 2)}}
    stacks = {0: f"{there}>~comm", **dict.fromkeys((1, 2), f"{on}>~comm")}
    groups = dict.fromkeys("ab", (0, 1, 2))
    return make_case(calls, world=3, groups=groups, source=_PREPARES.replace("TEST", test), stacks=stacks)


# The loop trains in line 3 and looks at another set in line 5; line 11 makes the step.
_STAGES = """def main():
    while trainer.step < args.steps:
        train()
        if trainer.step % 10 == 0:
            look()

def train():
    dist.recv(grad, src=1)
    norm = clip(model.parameters())
    if TEST:
        optimizer.step()

def look():
    dist.recv(x, src=0)
"""


def _stages(test: str, *steps: int) -> Later:
    """Rank 0 receives in train(), rank 1 in look(); `steps`: how many each of them has made."""
    there, on = "main:3>train:8", "main:5>look:14"
    return make_case(
        {},
        world=2,
        pending={0: [pending("recv", peer=1, where=there)], 1: [pending("recv", peer=0, where=on)]},
        source=_STAGES.replace("TEST", test),
        stacks={0: f"{there}>~comm", 1: f"{on}>~comm"},
        more={r: {"steps": n} for r, n in enumerate(steps)},
    )


_SPY = """\
Process {pid}: python -u train.py
Python v3.12.9 (/opt/bin/python3.12)

Thread {pid} (active): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4818)
    save (app/manager.py:218)
Thread {thread} (active): "{name}"
    {call} (torch/distributed/distributed_c10d.py:3834)
    _save_state_dict (torch/distributed/checkpoint/state_dict_saver.py:396)
    run (threading.py:1012)

"""
_BOTH = "".join(_SPY.format(pid=p, thread=p + 40, name="saver_0", call="all_gather") for p in (100, 300))
_ONE = _SPY.format(pid=100, thread=140, name="saver_0", call="all_gather")
_IDLE = _SPY.format(pid=300, thread=340, name="saver_0", call="get").replace("distributed_c10d.py:3834", "queue.py:171")


def _one_thread(*, here: str, there: str, first: str = "main") -> Later:
    """The main threads of two ranks part at ways `here` and `there`; `first`: the thread that made rank 1's first call that is known."""
    ahead = {0: "a/barrier@main:2 thread=main", 1: f"a/barrier@main:2 thread={first}"}
    round_ = ["b/all_gather[8]@forward:5 thread=main", "b/all_reduce[8]@backward:9 thread=pt_autograd_0"]
    round_ += ["b/all_gather[4]@counts:21 thread=main"]
    odd = {0: f"b/all_gather[3]@{here} thread=main !", 1: f"b/all_gather[8]@{there} thread=main !"}
    return make_case({r: [ahead[r], *round_ * 3, odd[r]] for r in (0, 1)}, world=2, groups=_PAIRS)


def _made_by(begins: str, threads: str = "~thread>") -> Later:
    """Each rank waits in a group that the other has left or not reached, and both groups were made below a function, in threads."""
    at = f"{threads}{begins}:9"
    calls = {0: [f"1/all_reduce[8]@{at} !"], 1: [f"2/all_reduce[8]@{at} !"]}
    made = [pending("new_group", index=i, done=True, where="run:5>prepare:3") for i in (1, 2)]
    return make_case(calls, world=2, groups={"1": (0, 1), "2": (0, 1)}, pending={0: made, 1: made})


CASES = {
    "collective-order-race": (
        Fires(_made_by("run"), (), 3),
        Fires(_made_by("run", threads=""), (0, 1), 9),
        Fires(_made_by("go"), (0, 1), 9),
        Fires(log_case(_BOTH), ()),
        Quiet(log_case(_ONE + _IDLE), "one process alone is in two calls at once"),
        Fires(
            make_case(
                {0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8 !"]},
                world=2,
                groups=_PAIRS,
                stacks={0: "main:5>~comm", 1: "main:8>~comm"},
            ),
            (0, 1),
            None,
        ),
        Fires(
            make_case({0: [_MEAN, _OTHER, f"{_OTHER} !"], 1: [_MEAN, _OTHER, f"{_MEAN} !"]}, world=2),
            (),  # which thread comes first is chance
            21,
        ),
        Fires(
            make_case(
                {
                    0: ["barrier@main:5", "gather[1]@~comm thread=saver", "all_reduce[8]@main:10 !"],
                    **{
                        r: ["barrier@main:5", "gather[1]@~comm thread=saver", "broadcast[1]@~comm thread=saver !"]
                        for r in (1, 2)
                    },
                },
                world=3,
            ),
            (),  # it went well before: which thread comes first is chance
            10,
        ),
        Fires(
            make_case(
                {
                    0: ["barrier@main:5", "all_reduce[8]@main:10 !"],
                    1: ["barrier@main:5", "gather[1]@save:21 thread=saver !"],
                    2: ["barrier@main:5", "all_reduce[8]@main:10 !"],
                },
                world=3,
            ),
            (1,),
            21,
        ),
        Fires(_locked("with lock:"), (), 3),
        Fires(_locked("if True:"), (0, 1), None),
        Fires(_alone(), (0,), 3, cause="code-divergence"),
        Fires(_alone("b/all_gather[1]@main:4"), (0, 1), None),
        Fires(_looks(), (1, 3), 7, cause="code-divergence"),
        Fires(_looks("all/all_reduce[1]@setup:20"), (1, 3), 7, cause="code-divergence"),
        Fires(_looks(rounds=0), (0, 1, 2, 3), None),
        Fires(_stages("torch.isfinite(norm)", 9, 10), (0,), 11, cause="code-divergence"),
        Fires(_stages("torch.isfinite(norm)", 10, 10), (0, 1), None),
        Fires(_stages("args.train", 9, 10), (0, 1), None),
        Fires(_prepares("dist.get_rank() == 0"), (0,), 6, cause="code-divergence"),
        Fires(_prepares("dist.get_rank() == 0", "a/barrier@main:2>prepare:8"), (0,), 6),  # they may come to it later
        Fires(_prepares("args.unpack"), (0,), 6),
        Quiet(
            make_case({0: [_MEAN, f"{_COLLECT} !"], 1: [_MEAN, f"{_MEAN} !"]}, world=2),
            "only one rank is known to use the group from two threads",
        ),
        Quiet(
            make_case({0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8"]}, world=2, groups=_PAIRS),
            "a rank that is merely late closes no cycle",
        ),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[8]@main:10 thread=pt_autograd_0", "barrier@main:11 !"],
                    1: ["all_reduce[8]@main:10", "barrier@main:11 !"],
                },
                world=2,
            ),
            "backward issues its calls from autograd's thread",
        ),
        Quiet(
            _one_thread(here="counts:21", there="forward:5"),
            "one thread makes both calls, whatever function its stack begins in",
        ),
        Quiet(
            _one_thread(here="main:2>save:30", there="main:2>step:5", first="pt_autograd_0"),
            "the first call that is left of a rank came from autograd's thread",
        ),
    ),
}
