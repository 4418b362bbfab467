import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class World:
    def __init__(self):
        self.local = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(self.local)
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", self.local)

    @property
    def is_main(self):
        return self.rank == 0

    def wrap(self, model):
        return DDP(model.to(self.device), device_ids=[self.local])

    def barrier(self):
        dist.barrier()

    def tell(self, flag):
        box = [flag]
        dist.broadcast_object_list(box, src=0)
        return box[0]
