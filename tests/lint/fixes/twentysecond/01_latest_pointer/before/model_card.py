import json
import os
import time

import torch.distributed as dist

from ckpt_paths import latest_checkpoint


class ModelCardCallback:
    """Keeps card.json next to the checkpoints for the registry crawler."""

    def __init__(self, root: str, owner: str):
        self.root = root
        self.owner = owner

    def on_epoch_end(self, state) -> None:
        if dist.get_rank() == 0:
            self._write_card(state)

    def _write_card(self, state) -> None:
        path = latest_checkpoint(self.root)
        card = {
            "owner": self.owner,
            "epoch": state.epoch,
            "loss": state.last_loss,
            "weights": path,
            "updated": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }
        tmp = os.path.join(self.root, "card.json.tmp")
        with open(tmp, "w") as f:
            json.dump(card, f, indent=2)
        os.replace(tmp, os.path.join(self.root, "card.json"))
