import threading
from pathlib import Path

import torch
import torchvision
from torch.utils.tensorboard import SummaryWriter


class RunBoards:
    """Everything that is drawn for a run: graph, mosaics, scalars."""

    def __init__(self, save_dir, n_mosaics=3):
        self.save_dir = Path(save_dir)
        self.n_mosaics = n_mosaics
        self.tb = SummaryWriter(str(self.save_dir))

    def on_train_batch_end(self, ni, model, imgs, sync_bn):
        if ni == 0 and not sync_bn:
            net = model.module if hasattr(model, "module") else model
            self.tb.add_graph(torch.jit.trace(net, imgs[0:1], strict=False), [])
        if ni < self.n_mosaics:
            out = self.save_dir / f"train_batch{ni}.jpg"
            threading.Thread(target=torchvision.utils.save_image, args=(imgs.float().cpu(), str(out)), daemon=True).start()

    def on_epoch_end(self, epoch, values):
        for tag, value in values.items():
            self.tb.add_scalar(tag, value, epoch)

    def close(self):
        self.tb.close()
