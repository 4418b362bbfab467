import json
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class AsyncCheckpointer:
    def __init__(self, root, keep, process_group=None):
        self.root = Path(root)
        self.keep = keep
        self.pg = process_group or dist.new_group(backend="gloo")
        self.pending = None
        self.pending_step = None

    def _finish(self):
        if self.pending is None:
            return
        self.pending.result()
        dist.barrier(group=self.pg)
        if dist.get_rank() == 0:
            done = self.root / f"step-{self.pending_step}"
            (done / "done.json").write_text(json.dumps({"step": self.pending_step}))
            self._prune()
        self.pending = None
        self.pending_step = None

    def _prune(self):
        found = sorted(self.root.glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
        for old in found[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def save(self, model, optimizer, step):
        self._finish()
        model_state, optim_state = get_state_dict(model, optimizer)
        self.pending = dcp.async_save(
            {"model": model_state, "optim": optim_state},
            checkpoint_id=str(self.root / f"step-{step}"),
            process_group=self.pg,
        )
        self.pending_step = step

    def load_latest(self, model, optimizer):
        latest = [None]
        if dist.get_rank() == 0:
            found = [int(p.parent.name.split("-")[1]) for p in self.root.glob("step-*/done.json")]
            latest[0] = max(found, default=None)
        dist.broadcast_object_list(latest, src=0, group=self.pg)
        if latest[0] is None:
            return 0
        model_state, optim_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optim_state}
        dcp.load(state, checkpoint_id=str(self.root / f"step-{latest[0]}"), process_group=self.pg)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return latest[0]

    def close(self):
        self._finish()
        dist.destroy_process_group(self.pg)


def run(model, optimizer, batches, root, every):
    ckpt = AsyncCheckpointer(root, keep=3)
    start = ckpt.load_latest(model, optimizer)
    for step in range(start, len(batches)):
        loss = model(batches[step]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % every == 0:
            ckpt.save(model, optimizer, step + 1)
    ckpt.close()
