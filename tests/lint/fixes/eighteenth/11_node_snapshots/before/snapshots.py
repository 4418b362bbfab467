import os
from pathlib import Path

import torch
import torch.distributed as dist

from call_queue import SaveQueue, SaveJob


def write_snapshot(state, path):
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


class NodeSnapshots:
    """One copy of the replicated state per node, on its own disk."""

    def __init__(self, folder, keep=2):
        self.folder = Path(folder)
        self.keep = keep
        self.queue = SaveQueue()
        self.owner = int(os.environ["LOCAL_RANK"]) == 0
        if self.owner:
            self.folder.mkdir(parents=True, exist_ok=True)

    def _prune(self):
        files = sorted(self.folder.glob("iter_*.pt"), key=lambda p: int(p.stem.split("_")[1]))
        for path in files[:-self.keep]:
            path.unlink()

    def save(self, model, step):
        if not self.owner:
            return
        state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        path = str(self.folder / f"iter_{step}.pt")
        self.queue.schedule(SaveJob(write_snapshot, (state, path), [self._prune]))

    def poll(self, blocking=False):
        if self.owner:
            return self.queue.collect(blocking=blocking, local_only=True)
        return []


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    snapshots = NodeSnapshots("/local/snapshots")
    for step in range(1, 2001):
        x = torch.randn(64, 512, device="cuda")
        loss = (ddp(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        snapshots.poll()
        if step % 200 == 0:
            snapshots.save(net, step)
    snapshots.poll(blocking=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
