import glob
import logging

import torch.distributed as dist

logger = logging.getLogger(__name__)


class ShardedDatasetReader:
    def __init__(self, base_reader):
        if dist.is_available() and dist.is_initialized():
            self._rank = dist.get_rank()
            self._world_size = dist.get_world_size()
        else:
            self._rank = 0
            self._world_size = 1
        self.reader = base_reader

    def read(self, file_path):
        shards = sorted(glob.glob(file_path))
        for i, shard in enumerate(shards):
            if i % self._world_size == self._rank:
                logger.info(f"reading instances from {shard}")
                for instance in self.reader.read(shard):
                    yield instance
