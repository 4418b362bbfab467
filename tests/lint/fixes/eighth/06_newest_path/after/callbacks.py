import json
import os
import pathlib
import shutil

import torch

from paths import newest_checkpoint, newest_checkpoint_here, scan
from rank_tools import rank_zero_only


class CheckpointCallback:
    def __init__(self, root, every, keep=2):
        self.root, self.every, self.keep = root, every, keep

    def restore(self, model):
        path = newest_checkpoint(self.root)
        blob = torch.load(os.path.join(path, "state.pt"), map_location="cpu") if path else {"step": 0}
        if path:
            model.module.load_state_dict(blob["model"])
        return blob["step"]

    @rank_zero_only
    def _write(self, model, epoch, step):
        path = os.path.join(self.root, f"epoch_{epoch}_step_{step}")
        os.makedirs(path, exist_ok=True)
        torch.save({"model": model.module.state_dict(), "step": step}, os.path.join(path, "state.pt"))
        for _, _, old in scan(self.root)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    @rank_zero_only
    def _publish(self, metrics):
        path = newest_checkpoint_here(self.root)
        if path is not None:
            pathlib.Path(path, "metrics.json").write_text(json.dumps(metrics))

    def on_step_end(self, model, epoch, step):
        if step % self.every == 0:
            self._write(model, epoch, step)

    def on_epoch_end(self, metrics):
        self._publish(metrics)
