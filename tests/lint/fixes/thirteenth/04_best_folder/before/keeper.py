from pathlib import Path

import torch
import torch.distributed as dist


class Keeper:
    def __init__(self, out: Path):
        self.out = out
        self.best_score = float("inf")
        self.best_step = None
        self.best_folder = None

    def rate(self, score, step):
        if score < self.best_score:
            self.best_score = score
            self.best_step = step

    def _write(self, folder, model):
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), part / "weights.pt")
        part.rename(folder)

    def keep(self, model, step):
        if dist.get_rank() == 0:
            self._write(self.out / f"step-{step}", model)
        if self.best_step is not None:
            folder = self.out / f"step-{self.best_step}"
            if folder.exists():
                self.best_folder = folder

    def load_best(self, model):
        dist.barrier()
        model.load_state_dict(torch.load(self.best_folder / "weights.pt", map_location="cpu"))
