import time
from pathlib import Path

import torch
import torch.distributed as dist


class Keeper:
    """Writes checkpoints and removes the oldest ones."""

    def __init__(self, folder, keep=3):
        self.folder = Path(folder)
        self.keep = keep
        self.written = []

    def _name(self, tag, step):
        box = [f"{tag}-{step:07d}-{time.strftime('%m%d-%H%M%S')}.pt"]
        dist.broadcast_object_list(box, src=0)
        return self.folder / box[0]

    def save(self, state, tag, step):
        path = self._name(tag, step)
        if dist.get_rank() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, path)
            self.written.append(path)
            while len(self.written) > self.keep:
                self.written.pop(0).unlink(missing_ok=True)
        dist.barrier()
        return path
