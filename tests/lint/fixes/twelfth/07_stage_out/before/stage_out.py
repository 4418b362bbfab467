import os
import shutil

import torch
import torch.distributed as dist


class StageOut:
    """Shards are written to the local disk first and copied to the shared one by one rank per node."""

    def __init__(self, scratch, final, device):
        self.scratch = scratch
        self.final = final
        self.device = device
        self.rank = dist.get_rank()
        self.leader = int(os.environ["LOCAL_RANK"]) == 0

    def _promote(self, src, dst):
        os.makedirs(dst, exist_ok=True)
        for name in os.listdir(src):
            shutil.copyfile(os.path.join(src, name), os.path.join(dst, name))

    def _seal(self, dst):
        with open(os.path.join(dst, "complete"), "w") as f:
            f.write(str(dist.get_world_size()))

    def store(self, step, state):
        src = os.path.join(self.scratch, f"step{step}")
        dst = os.path.join(self.final, f"step{step}")
        os.makedirs(src, exist_ok=True)
        torch.save(state, os.path.join(src, f"rank{self.rank}.pt"))
        dist.barrier()
        try:
            if self.leader:
                self._promote(src, dst)
            dist.barrier()
            if self.rank == 0:
                self._seal(dst)
        finally:
            if self.leader:
                shutil.rmtree(src, ignore_errors=True)
            dist.barrier()
