import shutil
import time
from pathlib import Path

import torch

from parallel import meet


class Keeper:
    def __init__(self, folder, recoverables):
        self.folder = Path(folder)
        self.recoverables = recoverables
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, meta):
        target = self.folder / time.strftime("CKPT+%Y-%m-%d+%H-%M-%S")
        target.mkdir()
        for name, item in self.recoverables.items():
            torch.save(item.state_dict(), target / f"{name}.ckpt")
        torch.save(meta, target / "meta.pt")
        return target

    def found(self):
        folders = [p for p in self.folder.glob("CKPT+*") if (p / "meta.pt").exists()]
        return [(p, torch.load(p / "meta.pt")) for p in folders]

    def delete(self, key, count):
        meet()
        ranked = sorted(self.found(), key=lambda item: item[1][key])
        for path, _ in ranked[count:]:
            shutil.rmtree(path)
        meet()

    def save_and_prune(self, meta, key="WER", count=1):
        self.save(meta)
        self.delete(key, count)

    def recover_best(self, key="WER"):
        path, meta = min(self.found(), key=lambda item: item[1][key])
        for name, item in self.recoverables.items():
            item.load_state_dict(torch.load(path / f"{name}.ckpt", map_location="cpu"))
        return meta
