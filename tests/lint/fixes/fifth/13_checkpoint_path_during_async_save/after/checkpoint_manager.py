import os

import torch.distributed as dist


class CheckpointManager:
    def __init__(self, dirpath, keep_last=None):
        self.dirpath = dirpath
        self.keep_last = keep_last
        self.paths = []

    def generate_path(self, epoch, step, metric=None, process_group=None):
        name = f"epoch_{epoch}_step_{step}"
        if metric is not None:
            name += f"_{metric[0]}={metric[1]}"
        path = [os.path.join(self.dirpath, name)]
        dist.broadcast_object_list(path, src=0, group=process_group)
        return path[0]

    def exists(self, path, process_group=None):
        found = [os.path.exists(path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found, src=0, group=process_group)
        return found[0]

    def append(self, path):
        self.paths.append(path)
