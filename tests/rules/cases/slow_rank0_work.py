"""The cases of slow-rank0-work."""

from __future__ import annotations

from tests.rules.notation import Later, log_case, make_case
from unhang.model import ProcessState
from unhang.testing import Fires, Quiet, raised

_SOURCE = """def main():
    if rank == 0:
        save(model)
    dist.barrier()
    other(model)
"""

_FIRST = """def prepare():
    if rank > 0:
        dist.barrier()
    data = tokenize(texts)
    if rank == 0:
        dist.barrier()
"""

_INTERRUPTED = """\
  File "/app/engine/trainer.py", line 277, in _setup_train
    self.train_loader = self.get_dataloader(self.trainset, rank=RANK)
  File "/app/engine/train.py", line 48, in get_dataloader
    with torch_distributed_zero_first(rank):
  File "/opt/env/lib/python3.9/contextlib.py", line 119, in __enter__
    return next(self.gen)
KeyboardInterrupt
"""

_WAIT = {r: ["barrier@main:4 !"] for r in (1, 2, 3)}

_COMM = dict.fromkeys((1, 2, 3), "main:4>~comm")


def _gave_up(message: str) -> Later:
    """The others have raised, at the end of their own limit: their last stacks are from before."""
    errors = {r: raised(f"RuntimeError: {message}@main:4", 9.9) for r in (1, 2, 3)}
    return make_case(_WAIT, stacks={**dict.fromkeys((1, 2, 3), "main:5"), 0: "main:3"}, source=_SOURCE, errors=errors)


def _in_child(share: float) -> Later:
    """Rank 0 waits for a program that it started, which uses so much of a core."""
    state = {0: ProcessState("S", cpu_share=0.03, children_share=share)}
    return make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:3>~child"}, source=_SOURCE, states=state)


def _first(source: str) -> Later:
    """Rank 0 has gone past the barrier of the others, in the same function, and calls its own work there."""
    waits = {r: ["barrier@prepare:3 !"] for r in (1, 2, 3)}
    stacks = {**dict.fromkeys((1, 2, 3), "prepare:3>~comm"), 0: "prepare:4"}
    return make_case(waits, hang="suspected", stacks=stacks, source=source)


CASES = {
    "slow-rank0-work": (
        Fires(log_case(_INTERRUPTED), (0,)),
        Quiet(log_case(_INTERRUPTED.replace("torch_distributed_zero_first", "build_model")), "another wait"),
        Quiet(
            log_case(_INTERRUPTED.replace("KeyboardInterrupt", "DistBackendError: NCCL error: unhandled system error")),
            "the barrier itself failed",
        ),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:3"}, source=_SOURCE), (0,), 3),
        Fires(_gave_up("Timed out waiting 15000ms for recv operation to complete"), (0,), 3),
        Quiet(_gave_up("bad batch"), "they raised something of their own"),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:5"}, source=_SOURCE),
            "work that every rank does",
        ),
        Fires(_in_child(0.4), (0,), 3),
        Fires(_first(_FIRST), (0,), 4),
        Quiet(_in_child(0.0), "a wait for a program that does nothing"),
        Quiet(_first(_FIRST.replace("rank > 0", "ready")), "the others wait where no condition on the rank leads them"),
    ),
}
