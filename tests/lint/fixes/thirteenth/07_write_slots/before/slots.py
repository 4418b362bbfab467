from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist


class WriteSlots:
    """Writes shards in the background, one pending write for each slot."""

    def __init__(self, out: Path):
        self.out = out
        self.pool = ThreadPoolExecutor(max_workers=2)
        self.pending = {}

    def _write(self, state, folder):
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(state, folder / f"shard_{dist.get_rank()}.pt")

    def _drain(self, slot):
        future = self.pending.pop(slot, None)
        if future is None:
            return
        future.result()
        dist.barrier()

    def save(self, slot, state, step):
        self._drain(slot)
        copy = {k: v.detach().cpu().clone() for k, v in state.items()}
        self.pending[slot] = self.pool.submit(self._write, copy, self.out / f"{slot}-{step}")

    def close(self):
        for slot in sorted(self.pending):
            self._drain(slot)
        self.pool.shutdown()
