"""Methods of objects whose class the name of the receiver tells: somebody makes one under this name, or nobody does."""

import psutil
import torch.distributed as dist


class NodeLayout:
    def __init__(self, size):
        self.size = size

    def wait(self):
        dist.barrier()


class DiskTurnstile:
    def __init__(self, size):
        self.size = size

    def hold(self):
        dist.barrier()


class Reader:
    def __init__(self, layout, turnstile):
        self.layout, self.turnstile = layout, turnstile

    def read(self, total):
        if total < psutil.virtual_memory().available:
            self.layout.wait()  # LNT106

    def read_from_disk(self, total):
        if total < psutil.virtual_memory().available:
            self.turnstile.hold()  # far LNT106


def build(layout, turnstile):
    return Reader(layout, turnstile).read(1 << 30)


def main(turnstile):
    layout = NodeLayout(8)
    build(layout, turnstile)
