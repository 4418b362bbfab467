import logging
import math
import random

logger = logging.getLogger(__name__)


class AspectBucket:
    def __init__(self, name, paths):
        self.name = name
        self.paths = sorted(paths)
        self.read_only = False

    def split_between(self, rank, world, batch_size, seed=0):
        order = list(self.paths)
        random.Random(seed).shuffle(order)
        unit = world * batch_size
        missing = math.ceil(len(order) / unit) * unit - len(order)
        order += [order[-1]] * missing
        size = len(order) // world
        self.paths = order[rank * size:(rank + 1) * size]
        self.read_only = True
        logger.info("bucket %s: %d of %d on rank %d", self.name, size, len(order), rank)

    def drop(self, path):
        before = len(self.paths)
        self.paths = [p for p in self.paths if p != path]
        logger.warning("%s left bucket %s (%d slots)", path, self.name, before - len(self.paths))
        if self.read_only and self.paths:
            self.paths += [self.paths[-1]] * (before - len(self.paths))

    def __len__(self):
        return len(self.paths)
