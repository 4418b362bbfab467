"""The cases of slow-rank0-work."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_SOURCE = """def main():
    if rank == 0:
        save(model)
    dist.barrier()
    other(model)
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

CASES = {
    "slow-rank0-work": (
        Fires(log_case(_INTERRUPTED), (0,)),
        Quiet(log_case(_INTERRUPTED.replace("torch_distributed_zero_first", "build_model")), "another wait"),
        Quiet(
            log_case(_INTERRUPTED.replace("KeyboardInterrupt", "DistBackendError: NCCL error: unhandled system error")),
            "the barrier itself failed",
        ),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:3"}, source=_SOURCE), (0,), 3),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:5"}, source=_SOURCE),
            "work that every rank does",
        ),
    ),
}
