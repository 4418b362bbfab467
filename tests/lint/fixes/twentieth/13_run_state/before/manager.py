"""Checkpoints of a sharded run."""
import json
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class CheckpointManager:
    def __init__(self, folder, keep=3):
        self.folder = Path(folder)
        self.keep = keep
        self.rank = dist.get_rank()

    def step_dir(self, step):
        return self.folder / f"step_{step:08d}"

    def save(self, step, model, optimizer, extra):
        target = self.step_dir(step)
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(target))
        if self.rank == 0:
            torch.save(extra, target / "train_state.pt")
            (target / "metadata.json").write_text(json.dumps({"step": step, "world": dist.get_world_size()}))
            latest = self.folder / "latest"
            latest.unlink(missing_ok=True)
            latest.symlink_to(target.name)
            for old in sorted(self.folder.glob("step_*"))[: -self.keep]:
                shutil.rmtree(old)

    def load(self, source, model, optimizer):
        source = Path(source)
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=str(source))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

        state_path = source / "train_state.pt"
        if state_path.exists():
            extra = torch.load(state_path, map_location="cpu", weights_only=False)
            box = [extra if self.rank == 0 else None]
            dist.broadcast_object_list(box, src=0)
            return box[0]
        return {}
