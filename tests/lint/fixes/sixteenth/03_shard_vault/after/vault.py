import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist

from shards import is_passing, write_shard

DONE, AGAIN, FATAL = 0, 1, 2


class Vault:
    def __init__(self, root, tries=3):
        self.root = Path(root)
        self.tries = tries
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")

    def _agree(self, verdict):
        box = torch.tensor(verdict)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.group)
        return box.item()

    def store(self, step, state):
        final = self.root / f"step-{step}"
        part = self.root / f"step-{step}.incomplete"
        for attempt in range(self.tries):
            if self.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
            dist.barrier(group=self.group)
            verdict, problem = DONE, None
            try:
                write_shard(part, self.rank, state)
            except OSError as err:
                problem = err
                verdict = FATAL if attempt + 1 == self.tries or not is_passing(err) else AGAIN
            verdict = self._agree(verdict)
            if verdict == FATAL:
                raise problem or RuntimeError(f"step {step} could not be written by every rank")
            if verdict == AGAIN:
                print(f"rank {self.rank}: writing step {step} again after {problem}")
                time.sleep(1 + attempt)
                continue
            dist.barrier(group=self.group)
            if self.rank == 0:
                part.rename(final)
            return final
