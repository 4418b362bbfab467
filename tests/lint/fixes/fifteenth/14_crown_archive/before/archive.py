import os
from copy import deepcopy

import torch
import torch.distributed as dist


class CrownArchive:
    def __init__(self, folder):
        self.folder = folder
        self.crown = os.path.join(folder, "crown.pt")
        self.best_path = ""
        self.previous = ""
        self.best_score = float("inf")

    def consider(self, trainer, score):
        if score >= self.best_score:
            return
        self.best_score = score
        self.best_path = os.path.join(self.folder, "best.pt")
        trainer.save(self.best_path)

    def on_save(self, trainer):
        if not self.best_path or not os.path.exists(self.best_path):
            return
        self.previous = self.best_path
        old = deepcopy(trainer.model.state_dict())
        best = torch.load(self.best_path, map_location="cpu")
        trainer.model.load_state_dict(best["model"])
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(trainer.model.state_dict(), self.crown)
        trainer.model.load_state_dict(old)
        dist.barrier()
