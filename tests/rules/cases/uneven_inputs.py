"""The cases of uneven-inputs."""

from __future__ import annotations

from tests.rules.notation import Later, make_case
from unhang.testing import Fires, Quiet, ended, pending

_SOURCE = (
    "def main():\n    for batch in loader:\n        loss = model(batch)\n        loss.backward()\n    dist.barrier()\n"
)
_LOOP = ["all_reduce[8]@main:4", "all_reduce[8]@main:4"]
_EPOCH = [*_LOOP, "all_reduce[8]@main:4", "barrier@main:5"]
_EPOCHS = [*_EPOCH * 3, *_EPOCH[:-1]]
# Line 4 makes the call, line 8 the barrier behind the loop.
_STOPS = """def main():
    for epoch in range(epochs):
        loss = model(batch)
        loss.backward()
        if stopper.step(validate(model)):
            log("early")
            break
    dist.barrier()
"""
_SKIPS = """def main():
    for step in range(steps):
        try:
            loss.backward()
        except IndexError:
            skipped += 1
            continue
    dist.barrier()
"""
_COUNTS = """def main():
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        if step + 1 >= args.max_steps:
            log("enough")
            break
    dist.barrier()
"""
_COUNTED_FROM = """def main():
    step = START
    while step < args.steps:
        for batch in loader:
            loss.backward()
            PASSED
                step += 1
    dist.barrier()
"""
_RESUMES = """def main():
    start = read_checkpoint(args.folder)
    epochs = len(loader)
    for epoch in range(start, epochs):
        loss.backward()
    dist.barrier()
"""


# Rank 2 has begun fit() anew, in front of the loop in which the others are; its line 5 makes a call, too.
_TRIES = """def main():
    fit(16)
@retry(stop=3)
def fit(size):
    model = prepare(size)
    for batch in loader:
        loss = model(batch)
        loss.backward()
"""


def _begun_anew(source: str) -> Later:
    head, step = "all_gather[1]@main:2>fit:5", "all_reduce[8]@main:2>fit:8"
    return make_case(
        {2: [head, step, step, f"{head} !"], **{r: [head, step, step, f"{step} !"] for r in (0, 1)}},
        world=3,
        source=source,
    )


_RAMPS = """def main():
    passes = 1
    for step in range(steps):
        for _ in range(passes):
            loss.backward()
        if mean(losses) < mark:
            passes = passes * 2
        dist.barrier()
"""
_PIPE = """def main():
    for batch in batches:
        if rank == 0:
            dist.send(forward(batch), 1)
        else:
            dist.recv(batch, 0)
    dist.barrier()
"""


# What the loop of both roles goes over is set before it, by the test TEST.
_CHUNKS = """def main(batch, rank):
    if TEST:
        parts = list(batch.chunk(4))
    else:
        parts = [None] * 4
    for part in parts:
        if rank == 0:
            dist.send(forward(part), 1)
        else:
            dist.recv(buffer, 0)
    dist.barrier()
"""


def _pipe(*received: str, source: str = _PIPE, first: int = 4) -> Later:
    """Rank 0 sends to rank 1 once more, which is in the barrier behind the loop."""
    send, barrier = f"main:{first}", f"main:{first + 3}"
    sent = [pending("send", peer=1, done=True, where=send, index=i) for i in range(3)]
    return make_case(
        {1: [f"barrier@{barrier} !"]},
        world=2,
        source=source,
        pending={
            0: [*sent, pending("send", peer=1, where=send, index=4)],
            1: [pending("recv", peer=0, done=True, where=x) for x in received],
        },
        stacks={0: f"{send}>~comm", 1: f"{barrier}>~comm"},
    )


def _chunks(test: str) -> Later:
    """The same, of parts that are set by a test."""
    return _pipe(*["main:10"] * 3, source=_CHUNKS.replace("TEST", test), first=8)


_STAGES = """def main():
    if rank == 0:
        for batch in batches:
            dist.send(forward(batch), 1)
    else:
        for labels in targets:
            dist.recv(buffer, 0)
    dist.barrier()
"""


def _stages(last: str) -> Later:
    """Rank 0 sends once more in its own loop; the other role is at `last`."""
    sent = [pending("send", peer=1, done=True, where="main:4", index=i) for i in range(3)]
    received = [pending("recv", peer=0, done=True, where="main:7", index=i) for i in range(3)]
    return make_case(
        {1: ["barrier@main:8 !"]} if last == "main:8" else {},
        world=2,
        source=_STAGES,
        pending={0: [*sent, pending("send", peer=1, where="main:4", index=4)], 1: received},
        stacks={0: "main:4>~comm", 1: f"{last}>~comm" if last == "main:8" else last},
    )


def _resumed(**start: int) -> Later:
    """Rank 2 is in the barrier behind the loop; `start`: what it and the others began with."""
    loop = ["all_reduce[8]@main:5", "all_reduce[8]@main:5"]
    others: dict[int, list[str]] = {r: [*loop, "all_reduce[8]@main:5 !"] for r in range(2)}
    stacks = dict.fromkeys(range(2), f"main:5>~comm start={start['theirs']} epochs=7")
    stacks[2] = f"main:6>~comm start={start['mine']} epochs=7"
    return make_case({2: [*loop, "barrier@main:6 !"], **others}, world=3, source=_RESUMES, stacks=stacks)


def _counted(start: str, passed: str = "with timer:") -> Later:
    """Rank 2 is behind a loop whose rounds the program counts from `start`; `passed`: what each step of the count stands under."""
    loop = ["all_reduce[8]@main:5"] * 3
    others: dict[int, list[str]] = {r: [*loop, "all_reduce[8]@main:5 !"] for r in range(2)}
    source = _COUNTED_FROM.replace("START", start).replace("PASSED", passed)
    return make_case({2: [*loop, "barrier@main:8 !"], **others}, world=3, source=source)


def _leaves(source: str) -> Later:
    """Rank 3 is in the barrier behind the loop, the others made another round."""
    others: dict[int, list[str]] = {r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}
    return make_case({3: [*_LOOP, "barrier@main:8 !"], **others}, source=source)


# An epoch of steps, after which patience may be over: the others are in a later epoch of the loop that one has left.
_EPOCHS_OF_STEPS = """def main():
    for epoch in range(epochs):
        for step in range(12):
            loss = model(batch)
            loss.backward()
        if stopper.step(validate(model)):
            break
    dist.barrier()
"""


def _behind_the_epochs() -> Later:
    """Rank 2 left the outer loop in epoch 4, the others have begun epoch 5."""
    made = ["all_reduce[8]@main:5"] * 3
    calls = {2: [*made, "barrier@main:8 !"], **{r: [*made, "all_reduce[8]@main:5 !"] for r in range(2)}}
    stacks = {2: "main:8 epoch=4 step=11", **dict.fromkeys(range(2), "main:5 epoch=5 step=0")}
    return make_case(calls, world=3, source=_EPOCHS_OF_STEPS, stacks=stacks)


# Line 6 makes the call, line 7 the barrier; which shards a rank has hangs on its number.
_SHARDS = """def main(rank, world):
    for name in shards_of(rank, world):
        rows = read(name)
        for at in range(0, len(rows), 16):
            x = model(rows[at])
            dist.all_reduce(x)
    dist.barrier()
"""
# Line 7 makes the call; rank 0 alone may leave the loop before it.
_PATIENCE = """def main(rank):
    for epoch in range(60):
        if rank == 0:
            score = validate(model)
            if patience.update(score):
                break
        dist.broadcast(rate, src=0)
"""
# Line 6 makes the call, line 7 the barrier behind the loop; both make as many rounds.
_BUDGET = """def main(rank):
    for tokens in batches_of(rank):
        budget.add(len(tokens))
        full = budget.seen > len(tokens) * 3
        with nullcontext() if full else model.no_sync():
            model(tokens).backward()
    dist.barrier()
"""


def _shards(at: int) -> Later:
    """Rank 0 is in the inner loop at `at`, the others are behind both loops."""
    done = ["all_reduce[8]@main:6"] * 4
    calls = {0: [*done, "all_reduce[8]@main:6 !"], **{r: [*done, "barrier@main:7 !"] for r in (1, 2)}}
    return make_case(calls, world=3, source=_SHARDS, stacks={0: f"main:6>~comm at={at}"})


# Line 4 makes the call, line 5 the barrier behind both loops; all have as many epochs.
_OF_EPOCHS = """def main(loader):
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            dist.all_reduce(x)
    dist.barrier()
"""


def _without_a_batch() -> Later:
    """Rank 2 has no batch in the last epoch, of which the others are in the first."""
    done = ["all_reduce[8]@main:4"] * 4
    calls = {2: [*done, "barrier@main:5 !"], **{r: [*done, "all_reduce[8]@main:4 !"] for r in range(2)}}
    stacks = {2: "main:5>~comm", **dict.fromkeys(range(2), "main:4>~comm number=0 epoch=1")}
    return make_case(calls, world=3, source=_OF_EPOCHS, stacks=stacks)


# Line 3 makes the calls of a task, line 7 goes over the tasks of a rank; line 9 is behind that.
_TASKS = """def adapt(model, task):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)

def main(model, rank, world):
    for number in range(6):
        for task in tasks_of(number, rank, world):
            adapt(model, task)
        dist.all_reduce(error)
"""


def _tasks() -> Later:
    """Rank 2 has a task less."""
    call = "all_reduce[40]@main:8>adapt:3"
    others: dict[int, list[str]] = {r: [*[call] * 9, f"{call} !"] for r in range(2)}
    return make_case({2: [*[call] * 9, "all_reduce[1]@main:9 !"], **others}, world=3, source=_TASKS)


# Each pair of ranks makes line 4, each column of pairs line 7; line 8 is for all.
_MESH = """def main(rank):
    for step in range(300):
        x = batch_of(rank)
        dist.all_reduce(x, group=rows)
        if plateau.finished(x.mean()):
            break
        dist.all_reduce(x, group=columns)
    dist.barrier()
"""


def _mesh() -> Later:
    """Ranks 0 and 1 are in the barrier; ranks 2 and 3 wait for them in their columns."""
    groups = {"row0": (0, 1), "row1": (2, 3), "column0": (0, 2), "column1": (1, 3)}
    calls, stacks = {}, {}
    for rank in range(4):
        row, column = f"row{rank // 2}/all_reduce[8]@main:4", f"column{rank % 2}/all_reduce[8]@main:7"
        calls[rank] = [*[row, column] * 3, row, "barrier@main:8 !" if rank < 2 else f"{column} !"]
        stacks[rank] = "main:8>~comm" if rank < 2 else "main:7>~comm"
    return make_case(calls, world=4, source=_MESH, groups=groups, stacks=stacks)


# A round in which line 10 holds has no call of the columns; their loop, of line 15, is as long on all ranks.
_AVERAGES = """def main(rank):
    for step in range(300):
        train(batch_of(rank))
        if step % 4 == 3:
            dist.all_reduce(held_out())

def train(x):
    loss = model(x)
    dist.all_reduce(loss, group=rows)
    if bad(loss):
        return
    average(model)

def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=columns)
"""


def _averages() -> Later:
    """Ranks 2 and 3 left the columns out in their last round, and are in the call of all ranks; ranks 0 and 1 wait in the columns."""
    groups = {"row0": (0, 1), "row1": (2, 3), "column0": (0, 2), "column1": (1, 3)}
    calls, stacks = {}, {}
    for rank in range(4):
        row, column = (
            f"row{rank // 2}/all_reduce[8]@main:3>train:9",
            f"column{rank % 2}/all_reduce[8]@main:3>train:12>average:16",
        )
        calls[rank] = [*[row, column, column] * 3, row, f"{column} !" if rank < 2 else "all_reduce[1]@main:5 !"]
        stacks[rank] = "main:3>train:12>average:16>~comm" if rank < 2 else "main:5>~comm"
    return make_case(calls, world=4, source=_AVERAGES, groups=groups, stacks=stacks)


def _budget() -> Later:
    """Rank 2 reduces its gradients once more than the others."""
    done = ["all_reduce[8]@main:6"] * 2
    calls = {2: [*done, "all_reduce[8]@main:6 !"], **{r: [*done, "barrier@main:7 !"] for r in range(2)}}
    return make_case(calls, world=3, source=_BUDGET)


def _patience() -> Later:
    """Rank 0 came to the end of its program."""
    done = ["broadcast[8]@main:7"] * 3
    calls = {0: done, **{r: [*done, "broadcast[8]@main:7 !"] for r in (1, 2)}}
    return make_case(calls, world=3, source=_PATIENCE, exits={0: ended("exit", 0)})


def _two(source: str) -> Later:
    """The same of two ranks, of which rank 1 is behind the loop."""
    return make_case({1: [*_LOOP, "barrier@main:8 !"], 0: [*_LOOP, "all_reduce[8]@main:4 !"]}, world=2, source=source)


# Line 4 makes the call of a batch, line 5 that of an epoch, under no condition or under one on the data.
_EPOCH_OF = """def main(rank, world):
    for epoch in range(4):
        for batch in DataLoader(Shards(rank, world)):
            dist.all_reduce(x)
        dist.all_reduce(total)
"""


_FOUND = """def main(rank, world):
    for epoch in range(4):
        if found(rank):
            for batch in DataLoader(Shards(rank, world)):
                dist.all_reduce(x)
        dist.all_reduce(total)
"""


def _no_round(source: str, at: int = 4) -> Later:
    """Rank 2 has no batch at all in an epoch that the others have begun."""
    batch, epoch = f"all_reduce[8]@main:{at}", f"all_reduce[1]@main:{at + 1}"
    calls = {2: [*[batch] * 3, epoch, f"{epoch} !"], **{r: [*[batch] * 3, epoch, f"{batch} !"] for r in range(2)}}
    return make_case(calls, world=3, source=source)


# What the loop of all roles goes over is set by one line, for each of them.
_BY_ROLE = """def main(batch, rank):
    size = 4
    parts = batch.split(size) if rank == 0 else [None] * 4
    first = True

    count = 0
    for part in parts:
        if rank == 0:
            dist.send(forward(part), 1)
        else:
            dist.recv(buffer, 0)
    dist.barrier()
"""

_RETURNS = """def main(rank, world):
    for phase in PHASES:
        mine = files_for(phase, rank, world)
        if not mine:
            return
        dist.all_reduce(x)
"""


def _meters(over: str, before: str = "step()") -> Later:
    """Rank 1 is through with a loop that has one round more on the others."""
    source = f"def main():\n    {before}\n    barrier()\n    for one in {over}:\n        reduce(one)\n    barrier()\n"
    shared = ["all_reduce[8]@main:2", *["all_reduce[1]@main:5"] * 2]
    calls = {1: [*shared, "barrier@main:6 !"], **{r: [*shared, "all_reduce[1]@main:5 !"] for r in (0, 2)}}
    return make_case(calls, world=3, source=source)


CASES = {
    "uneven-inputs": (
        Fires(
            make_case(
                {3: [*_LOOP, "barrier@main:5 !"], **{r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}},
                source=_SOURCE,
            ),
            (3,),
            2,
        ),
        Fires(
            make_case(
                {
                    3: [*_EPOCH, *_EPOCH, *_LOOP, "barrier@main:5 !"],
                    **{r: [*_EPOCH, *_EPOCH, *_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)},
                },
                source=_SOURCE,
            ),
            (3,),
            2,
        ),
        Fires(
            make_case(
                {3: [*_EPOCHS, "all_reduce[8]@main:4 !"], **{r: [*_EPOCHS, "barrier@main:5 !"] for r in range(3)}},
                source=_SOURCE,
            ),
            (3,),
            2,
        ),
        Fires(
            make_case(
                {3: _LOOP, **{r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}},
                source=_SOURCE,
                exits={3: ended("exit", 0)},
            ),
            (3,),
            2,
        ),
        Fires(
            make_case(
                {
                    3: ["all_reduce[8]@main:6"] * 3,
                    **{r: [*["all_reduce[8]@main:6"] * 3, "all_reduce[8]@main:6 !"] for r in range(3)},
                },
                source=_RETURNS,
                exits={3: ended("exit", 0)},
            ),
            (3,),
            4,
            cause="rank-exited-early",
        ),
        Fires(_leaves(_STOPS), (3,), 5, cause="code-divergence"),
        Fires(_behind_the_epochs(), (2,), 6, cause="code-divergence"),
        Fires(_two(_STOPS), (1,), 5, cause="code-divergence"),  # the one that stopped
        Fires(_leaves(_SKIPS), (3,), 5, cause="code-divergence"),
        Fires(_leaves(_COUNTS), (3,), 2),
        Fires(
            make_case(
                {
                    2: ["all_reduce[8]@main:5", "all_reduce[8]@main:5 !"],
                    **{r: ["all_reduce[8]@main:5", "barrier@main:8 !"] for r in range(2)},
                },
                world=3,
                source=_RAMPS,
            ),
            (2,),
            6,
            cause="code-divergence",
        ),
        Fires(_shards(at=0), (0,), 2),  # it has begun another shard
        Fires(_shards(at=16), (0,), 4),  # its shard is longer
        Fires(_without_a_batch(), (2,), 3),
        Fires(_begun_anew(_TRIES), (2,), 6, cause="code-divergence"),
        Fires(_begun_anew(_TRIES.replace("retry(stop=3)", "torch.no_grad()")), (2,), 6),  # an epoch is through
        Fires(_tasks(), (2,), 7),  # all have as many parameters
        Fires(_mesh(), (0, 1), 5, cause="code-divergence"),
        Fires(_averages(), (2, 3), 10, cause="code-divergence"),
        Fires(_patience(), (0,), 5, cause="rank-exited-early"),
        Fires(_pipe("main:6", "main:6", "main:6"), (1,), 2),
        Fires(_chunks("rank == 0"), (1,), 3, cause="code-divergence"),  # each role sets its own
        Fires(_chunks("args.whole"), (1,), 6),  # no test of the roles
        Fires(_stages("main:8"), (1,), 6),
        Fires(_resumed(mine=2, theirs=0), (2,), 2, cause="code-divergence"),
        Fires(_resumed(mine=0, theirs=0), (2,), 4),
        Fires(_counted("read_step(args.folder)"), (2,), 2, cause="code-divergence"),
        Fires(_counted("0"), (2,), 4),
        Fires(_counted("read_step(args.folder)", "if finite(loss):"), (2,), 4),
        Fires(_no_round(_EPOCH_OF), (2,), 3),
        Fires(_pipe(*["main:11"] * 3, source=_BY_ROLE, first=9), (1,), 3, cause="code-divergence"),
        Fires(_meters("self.meters.values()"), (1,), 4, cause="code-divergence"),  # each rank has met other entries
        Fires(_meters("self.batches"), (1,), 4),
        Fires(_meters("range(missing)", "missing = 9 - len(os.listdir(folder))"), (1,), 2, cause="filesystem-race"),
        Quiet(_no_round(_FOUND, at=5), "a condition on the data leads past what the others go over"),
        Quiet(
            make_case(
                {r: [*_LOOP, "barrier@main:5"] for r in range(4)},
                source=_SOURCE,
                hang=None,
                exit_code=0,
            ),
            "all ranks leave the loop together",
        ),
        Quiet(_budget(), "not each round of the loop makes the call"),
        Quiet(
            make_case(
                {3: _LOOP, **{r: [*_LOOP, "barrier@main:3 !"] for r in range(3)}},
                source=_SOURCE,
                exits={3: ended("exit", 0)},
            ),
            "what the others wait in, though it is in the loop, is no call that the rank ever made there",
        ),
        Quiet(
            make_case(
                {3: _LOOP, **{r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}},
                source=_SOURCE,
                exits={3: ended("exit", 2)},
            ),
            "it ended with an exit code that says that it failed: its data had not run out",
        ),
        Quiet(_pipe(), "the receiver is behind the loop, and never took part in it"),
        Quiet(_stages("main:6"), "each role is in its own loop, and one is late"),
    ),
}
