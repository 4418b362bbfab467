"""Which conditions may come out differently on the ranks, by what the source binds to their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.program.may_differ import OPEN, OWN, SAME
from unhang.analyze.program.source import surroundings

_BESIDE = """\
class Clock:
    def __init__(self, seconds):
        self.began, self.seconds, self.turns = time.monotonic(), seconds, 0

    def spent(self):
        return time.monotonic() - self.began > self.seconds

    def turn(self):
        self.turns += 1

def split(names, rank, world):
    return names[rank::world]

LIMIT = 5
"""
_PROGRAM = """\
from beside import LIMIT, Clock, split

class Rotation:
    def __init__(self, every):
        self.steps, self.every = [], every

    def wanted(self, step):
        return step % self.every == 0 and step not in self.steps

    def clean(self, rank):
        if rank != 0:
            return
        self.steps.pop(0)

class Counter:
    def __init__(self):
        self.counted = 0

    def full(self):
        return self.counted >= LIMIT

def main(model, loader, args):
    rank, world = dist.get_rank(), dist.get_world_size()
    clock, rotation, seen, kept, stop = Clock(3), Rotation(20), 0, 0, torch.zeros(1)
    mine, even = split(NAMES, rank, world), DataLoader(data, 8, sampler=DistributedSampler(data, world, rank))
    for step, (x, y) in enumerate(loader):
        seen += 1
        picked = y[:, 0] > 0
        last = step == LIMIT - 1
        score = model(x)
        dist.broadcast(stop, src=0)
        total = score.detach()
        dist.all_reduce(total)
        token, everyone = index.gather(-1, choice).item(), comm.gather(score)
        if picked.any():
            kept += 1
        try:
            read(x)
        except OSError:
            broken = True
        if TEST:
            reduce(x)
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("step % 10 == 0", SAME),
        ("last", SAME),
        ("seen > LIMIT", SAME),
        ("stop.item() > 0", SAME),  # all have it from rank 0
        ("total.mean() < 3", SAME),  # it has been summed up over all ranks
        ("dist.get_world_size() > 1", SAME),
        ("len(even) > 3", SAME),  # its sampler gives all ranks as many
        ("args.verbose", OPEN),
        ("token == END", OPEN),  # a tensor's own gather
        ("everyone == END", SAME),
        ("Counter().full()", SAME),
        ("picked.any()", OWN),
        ("len(x) < 4", OWN),
        ("kept > LIMIT", OWN),  # counted where the data have something
        ("broken", OWN),
        ("not mine", OWN),
        ("clock.spent()", OWN),  # the function is in another file
        ("clock.turns > 3", SAME),
        ("rotation.wanted(step)", OWN),  # one rank takes something out of the list that it asks for
        ("warned.is_set() or step % 10 == 0", OWN),  # one part of it suffices
        ("os.path.exists(args.stop_file)", OWN),
    ],
)
def test_what_a_condition_hangs_on(tmp_path: Path, test: str, expected: int) -> None:
    (tmp_path / "beside.py").write_text(_BESIDE)
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM.replace("TEST", test))
    line = path.read_text().splitlines().index("            reduce(x)") + 1
    (condition,) = surroundings(str(path), line).conditions
    assert condition.suspicion == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("with nullcontext() if last else model.no_sync():\n        loss.backward()", ["last"]),
        ("with model.no_sync() if last else nullcontext():\n        loss.backward()", ["not last"]),
        ("wait = nullcontext() if last else model.no_sync()\n    with wait:\n        loss.backward()", ["last"]),
        ("model.set_requires_gradient_sync(last)\n    loss.backward()", ["last"]),
        ("model.require_backward_grad_sync = last\n    loss.backward()", ["last"]),
        ("model.set_requires_gradient_sync(True)\n    loss.backward()", []),
        ("with nullcontext() if last else inference_mode():\n        loss.backward()", []),
    ],
)
def test_when_a_backward_reduces_its_gradients(tmp_path: Path, body: str, expected: list[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"def step(model, loss, last):\n    {body}\n")
    assert list(surroundings(str(path), len(path.read_text().splitlines())).tests) == expected
