"""Board callbacks of the detector trainer."""
import warnings

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter


def bare(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


class Pages:
    def __init__(self, folder, every=100):
        self.board = SummaryWriter(str(folder))
        self.every = every

    def on_batch_end(self, step, model, images, loss, sync_bn):
        if step == 0 and not sync_bn:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.board.add_graph(torch.jit.trace(bare(model), images[:1], strict=False), [])
        if step < 3:
            self.board.add_images("batch", images[:8].float(), step)
        if step % self.every == 0:
            self.board.add_scalar("loss", loss, step)

    def on_epoch_end(self, epoch, lr):
        self.board.add_scalar("lr", lr, epoch)

    def close(self):
        self.board.close()
