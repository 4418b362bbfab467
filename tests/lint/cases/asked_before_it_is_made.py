"""A path that is asked for by who is called, or gives it back, before one rank alone makes what is there."""

import os

import torch
import torch.distributed as dist


class Archive:
    def __init__(self):
        self.best = ""

    def consider(self, trainer):
        self.best = "best.pt"
        trainer.store_best(self.best)

    def on_store(self, trainer):
        if not self.best or not os.path.exists(self.best):
            return  # LNT106
        dist.barrier()

    def on_store_for_all(self, trainer):
        found = [os.path.exists(self.best) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found, src=0)
        if not found[0]:
            return
        dist.barrier()

    def resume(self, trainer):
        if os.path.exists("start.pt"):
            dist.barrier()


class Trainer:
    def __init__(self, net):
        self.net, self.archive = net, Archive()

    def store_best(self, path):
        self.archive.on_store(self)
        if dist.get_rank() == 0:
            torch.save(self.net.state_dict(), path)
        dist.barrier()

    def store_later(self, path):
        self.archive.on_store_for_all(self)
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(self.net.state_dict(), path)

    def free_path(self, step):
        path, n = f"{step}.pt", 0
        while os.path.exists(path):
            path, n = f"{step}-{n}.pt", n + 1
            dist.barrier()  # LNT106
        return path

    def next_store(self, step):
        path = self.free_path(step)
        self.write_alone(path)

    def write_alone(self, path):
        if dist.get_rank() == 0:
            torch.save(self.net.state_dict(), path)
        dist.barrier()

    def old_path(self, step):
        path = f"{step}.pt"
        while not os.path.exists(path):
            path = f"{step - 1}.pt"
            dist.barrier()
        return path

    def load_old(self, step):
        path = self.old_path(step)
        self.net.load_state_dict(torch.load(path))
