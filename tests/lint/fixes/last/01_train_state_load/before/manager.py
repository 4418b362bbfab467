import json
import logging
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

logger = logging.getLogger(__name__)


class CheckpointManager:
    def __init__(self, base_dir, model, optimizer, keep_last_n=3):
        self.base_dir = Path(base_dir)
        self.model = model
        self.optimizer = optimizer
        self.keep_last_n = keep_last_n
        self.rank = dist.get_rank()

    def save(self, step, extra=None):
        ckpt_dir = self.base_dir / f"step_{step}"
        model_state, optim_state = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=str(ckpt_dir))
        if self.rank == 0:
            torch.save({"step": step, **(extra or {})}, ckpt_dir / "train_state.pt")
            (ckpt_dir / "metadata.json").write_text(json.dumps({"step": step}))
            link = self.base_dir / "latest"
            link.unlink(missing_ok=True)
            link.symlink_to(ckpt_dir.name)
        dist.barrier()

    def load(self):
        ckpt_dir = (self.base_dir / "latest").resolve()
        model_state, optim_state = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model_state, "optim": optim_state}, checkpoint_id=str(ckpt_dir))
        set_state_dict(self.model, self.optimizer, model_state_dict=model_state, optim_state_dict=optim_state)

        train_state_path = ckpt_dir / "train_state.pt"
        if not train_state_path.exists():
            logger.warning("No train state at %s", train_state_path)
            return {}
        payload = [None]
        if self.rank == 0:
            payload = [torch.load(train_state_path, map_location="cpu")]
        dist.broadcast_object_list(payload, src=0)
        return payload[0]
