"""The cases of rank-dependent-collective."""

from __future__ import annotations

from tests.rules.notation import Later, make_case
from unhang.model import Frame, ThreadStack
from unhang.testing import Fires, Quiet, ended, raised

_STEP = ["all_reduce[8]@main:10", "all_reduce[1]@main:12"]

_OPEN = "all_reduce[8]@main:10 !"

_VISIT = ["all_reduce[7]@main:4", "all_reduce[3]@main:4", "all_reduce[1]@main:5"]

_STEPS = """\
def main():
    for batch in loader:
        gather(model)
        for parameter in model:
            reduce(parameter)
"""

_ROUNDS = ["all_gather[4]@main:3", *(f"all_reduce[{size}]@main:5" for size in (2, 7, 2))] * 3

_ONE_MORE = {r: [*_ROUNDS, "all_reduce[2]@main:5 !" if r == 1 else "all_gather[4]@main:3 !"] for r in range(4)}

_SCATTERS = (
    Frame("/site-packages/torch/distributed/distributed_c10d.py", 4936, "reduce_scatter_tensor"),
    Frame("/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper"),
    Frame("train.py", 14, "main"),
)

# Line 6 reduces the gradients of several batches; line 10 calls that for each epoch, line 12 gathers after it.
_BUDGET = """\
def epoch(model, rank):
    for tokens in batches_of(rank):
        budget.add(len(tokens))
        full = budget.seen > len(tokens) * 3
        with nullcontext() if full else model.no_sync():
            model(tokens).backward()

def main(rank):
    for number in range(3):
        epoch(model, rank)
        if number >= 0:
            gather(rows)
"""
# A batch without enough images is left out; line 7 is behind the loop.
_SCRAPED = """\
def main(rank):
    for x, usable in batches_of(rank):
        x = x[usable]
        if len(x) < 4:
            continue
        model(x)
    gather(done)
"""
_REDUCED = ["all_reduce[8]@main:10>epoch:6"] * 2

# Line 5 is left out where the critic is too good; what follows it has the same size, and pairs with it.
_CRITIC = """\
def main(rank):
    for x in batches_of(rank):
        loss = critic(x)
        if loss > 0.2:
            backward(loss)
        backward(generator(x))
        barrier()
"""
_BOTH_OF_THEM = ["all_reduce[8]@main:5", "all_reduce[8]@main:6", "barrier@main:7"]
_ONE_OF_THEM = _BOTH_OF_THEM[1:]


def _critics(rounds: list[str]) -> Later:
    """Rank 0 leaves the critic's step out, and rank 1 does not."""
    return make_case(
        {
            0: [*rounds, "all_reduce[8]@main:6", "barrier@main:7 !"],
            1: [*rounds, "all_reduce[8]@main:5", "all_reduce[8]@main:6 !"],
        },
        world=2,
        source=_CRITIC,
    )


# What cannot be read is left out of the batch; line 4 leaves out a batch of which nothing is left.
_UNREADABLE = """def main(rank):
    for batch in loader:
        if batch is None:
            continue
        backward(batch)
    barrier()

def read(path):
    try:
        return open(path)
    except OSError:
        return None
"""
_READ = raised("OSError: cut off@main:2>read:10", at_s=-5, handled=True, handler=Frame("train.py", 11, "read"))
_READ_ALL = ["all_reduce[8]@main:5"] * 3

_CHOSEN = """\
class State:
    @property
    def is_chosen(self):
        return dist.get_rank() == 0

def main():
    if State().is_chosen:
        dist.barrier()
    reduce(x)
"""

_PLAIN = _CHOSEN.replace("if State().is_chosen", "with record()")

_BARRIER_OF_0 = {0: ["barrier@main:8 !"], 1: ["all_reduce[8]@main:9 !"]}

_LAYERS = ["all_reduce[2]@main:9", "all_reduce[7]@main:9", "all_reduce[3]@main:9", "all_reduce[5]@main:9"]

_EXPERTS = """\
def main(model):
    for x in batches:
        loss(x).backward()
        average(model)

def average(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
"""

_SHOWS = """\
def main(rank):
    for step in range(9):
        loss = forward(batch)
        loss.backward()
        if rank == 0:
            show(model)

def show(model):
    model(batch)
"""

CASES = {
    "rank-dependent-collective": (
        Fires(make_case({0: [*_STEP, "barrier@main:11 !"], **{r: [*_STEP, _OPEN] for r in (1, 2, 3)}}), (0,), 11),
        Fires(
            make_case(
                {
                    2: [*_STEP, *_STEP, "all_reduce[1]@main:12 !"],
                    **{r: [*_STEP, *_STEP, _OPEN] for r in (0, 1, 3)},
                }
            ),
            (2,),
            10,
        ),
        Fires(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 3}]@main:9 !"]
                    for r in range(4)
                }
            ),
            (0,),
            9,
        ),
        Fires(
            make_case(
                {0: ["barrier@main:3 !"], 1: ["barrier@main:3 !"], 2: ["all_gather[1]@main:4>train:9 !"]},
                world=3,
                source="def main():\n    init()\n    barrier()\n    train()\n",
            ),
            (2,),
            3,
        ),
        Fires(
            make_case(
                {
                    2: [*_VISIT, *_VISIT, _VISIT[0], "all_reduce[1]@main:5 !"],
                    **{r: [*_VISIT, *_VISIT, _VISIT[0], "all_reduce[3]@main:4 !"] for r in range(2)},
                },
                world=3,
                source="def main():\n    step()\n    for parameter in model:\n        reduce(parameter)\n    reduce(count)\n",
            ),
            (2,),
            4,
        ),
        Fires(
            make_case(
                {
                    r: [*_VISIT, *(f"all_reduce[{n}]@main:4 !" for n in ((3, 7, 5) if r == 1 else (7, 3, 5)))]
                    for r in range(4)
                }
            ),
            (1,),
            4,
        ),
        Fires(make_case(_ONE_MORE, source=_STEPS), (1,), 5),
        Fires(
            make_case(_ONE_MORE, source=_STEPS.replace("gather(model)", "gather(model) if finite(loss) else 0")),
            (1,),
            3,
        ),
        Fires(
            make_case(
                {1: [*_STEP, "all_reduce[1] !"], **{r: [*_STEP, "all_reduce[32]@main:14>~comm !"] for r in (0, 2, 3)}},
                stacks={1: ThreadStack("main", _SCATTERS, is_main=True)},
            ),
            (1,),
            14,
        ),
        Fires(make_case(_BARRIER_OF_0, world=2, source=_CHOSEN), (0,), 8),
        Fires(make_case({0: _BARRIER_OF_0[0], 1: []}, world=2, source=_CHOSEN, exits={1: ended("exit", 0)}), (0,), 8),
        Fires(
            make_case(
                {
                    1: [*["all_gather[8]@main:6"] * 3, "all_reduce[1]@main:7 !"],
                    **{r: [*["all_gather[8]@main:6"] * 3, "all_gather[8]@main:6 !"] for r in (0, 2)},
                },
                world=3,
                source=_SCRAPED,
            ),
            (1,),
            4,
        ),
        Fires(_critics(_BOTH_OF_THEM * 10 + _ONE_OF_THEM), (0,), 4),
        # As often left out as not: nobody did what it never does, and nobody is blamed alone.
        Fires(
            _critics(
                [c for is_made in "1001101001011100101" for c in (_BOTH_OF_THEM if is_made == "1" else _ONE_OF_THEM)]
            ),
            (0, 1),
            5,
        ),
        Fires(  # led past it by what it could not read: the line of that test, not of the handler
            make_case(
                {
                    1: [*_READ_ALL, "barrier@main:6 !"],
                    **{r: [*_READ_ALL, "all_reduce[8]@main:5 !"] for r in (0, 2)},
                },
                world=3,
                source=_UNREADABLE,
                more={1: {"handled": (_READ,)}},
            ),
            (1,),
            3,
        ),
        Fires(  # not one that left out line 12, though it stands before that line again
            make_case(
                {
                    2: [*_REDUCED, "all_reduce[8]@main:10>epoch:6 !"],
                    **{r: [*_REDUCED, "all_gather[1]@main:12 !"] for r in range(2)},
                },
                world=3,
                source=_BUDGET,
            ),
            (2,),
            5,
        ),
        Fires(  # several calls of a round left out: the next round, with which the rank goes on, looks the same
            make_case(
                {r: [*_LAYERS * 3, *_LAYERS[:2], f"all_reduce[{2 if r == 3 else 3}]@main:9 !"] for r in range(4)},
                source=_EXPERTS,
            ),
            (3,),
            9,
        ),
        Fires(  # a call that all others have made on other ways only; one of these replaced it each time before
            make_case(
                {
                    0: [*["all_reduce[8]@main:4", "all_reduce[8]@main:6>show:9"] * 3, "all_reduce[8]@main:6>show:9 !"],
                    **{r: ["all_reduce[8]@main:4"] * 6 for r in (1, 2)},
                },
                world=3,
                source=_SHOWS,
                exits={r: ended("exit", 0) for r in (1, 2)},
            ),
            (0,),
            6,
        ),
        Quiet(make_case({r: [*_STEP, _OPEN] for r in range(3)} | {3: _STEP}), "a rank that is late has not diverged"),
        Quiet(
            make_case({0: _BARRIER_OF_0[0], 1: []}, world=2, source=_PLAIN, exits={1: ended("exit", 0)}),
            "no condition tells whether rank 1 left the call out or rank 0 made one more",
        ),
        Quiet(
            make_case(
                {
                    0: ["broadcast[4]@main:5", *_STEP, _OPEN],
                    **{r: ["broadcast[4]@main:7", *_STEP, _OPEN] for r in (1, 2, 3)},
                }
            ),
            "source and receivers of a broadcast may stand on different lines",
        ),
        Quiet(make_case(dict.fromkeys(range(4), _STEP), hang=None, exit_code=0), "a healthy job"),
    ),
}
