"""An object that is made with what is None on all ranks but the first, and asks for it."""

import os

import torch.distributed as dist


def folder_of(logger):
    folder = None
    if dist.get_rank() == 0:
        folder = os.path.join(logger.dir, "kept")
    return folder


class Keeper:
    def __init__(self, folder=None):
        self.folder = folder

    def begin(self, run):
        if self.folder is None:
            box = [run.name]
            dist.broadcast_object_list(box, src=0)  # LNT101
            self.folder = os.path.join(run.output, box[0])


class KeeperOfAll:
    def __init__(self, folder=None):
        self.folder = folder

    def begin(self, run):
        if self.folder is None:
            box = [run.name]
            dist.broadcast_object_list(box, src=0)
            self.folder = os.path.join(run.output, box[0])


def main(logger, run):
    keeper = Keeper(folder_of(logger))
    keeper.begin(run)
    other = KeeperOfAll(os.path.join(run.output, "kept"))
    other.begin(run)
