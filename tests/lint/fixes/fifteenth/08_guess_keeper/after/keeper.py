import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


class Keeper:
    def __init__(self, root):
        self.root = Path(root)

    def save(self, model, opt, epoch):
        raise NotImplementedError

    def point_best(self, epoch):
        link = self.root / "best"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(str(epoch))


class SoloKeeper(Keeper):
    def save(self, model, opt, epoch):
        folder = self.root / str(epoch)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), folder / "model.pt")
        self.point_best(epoch)


class ShardedKeeper(Keeper):
    def save(self, model, opt, epoch):
        folder = self.root / str(epoch)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(model, options=options)
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            torch.save(weights, folder / "model.pt")
            self.point_best(epoch)
        dist.barrier()
