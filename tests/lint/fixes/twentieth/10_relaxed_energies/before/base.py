"""Common parts of the trainers."""
import datetime
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class BaseTrainer:
    def __init__(self, model, loaders, identifier, run_dir="."):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        stamp = datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S")
        name = f"{stamp}-{identifier}" if identifier else stamp
        self.dirs = {
            "checkpoints": Path(run_dir) / "checkpoints" / name,
            "results": Path(run_dir) / "results" / name,
        }
        for path in self.dirs.values():
            path.mkdir(parents=True, exist_ok=True)
        self.model = DistributedDataParallel(model.to(self.device), device_ids=[self.device.index])
        self.loaders = loaders

    def save(self, epoch, optimizer):
        if dist.get_rank() == 0:
            state = {"epoch": epoch, "model": self.model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, self.dirs["checkpoints"] / "checkpoint.pt")

    @torch.no_grad()
    def predict(self, loader):
        self.model.eval()
        ids, energies = [], []
        for batch in loader:
            energies += self.model.module(batch.to(self.device)).view(-1).tolist()
            ids += [str(s) for s in batch.sid]
        return {"ids": np.array(ids), "energy": np.array(energies)}

    def save_results(self, predictions, name):
        folder = self.dirs["results"]
        part = folder / f"{name}_{dist.get_rank()}.npz"
        np.savez_compressed(part, **predictions)
        dist.barrier()
        if dist.get_rank() == 0:
            gathered = {key: [] for key in predictions}
            for rank in range(dist.get_world_size()):
                piece = folder / f"{name}_{rank}.npz"
                loaded = np.load(piece, allow_pickle=True)
                for key in gathered:
                    gathered[key].extend(loaded[key])
                piece.unlink()
            _, first = np.unique(gathered["ids"], return_index=True)
            np.savez_compressed(folder / f"{name}.npz", **{k: np.array(v)[first] for k, v in gathered.items()})
