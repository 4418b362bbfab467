import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class FSDPEngine:
    def __init__(self, model, rollout_client):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        for layer in model.model.layers:
            fully_shard(layer)
        self.model = fully_shard(model)
        self.rollout_client = rollout_client
        self.weight_update_group = None
        self.version = 0

    def init_weight_update_group(self, address, port, world_size):
        if dist.get_rank() == 0:
            self.rollout_client.init_weight_update_group(address, port, world_size)
            self.weight_update_group = self.rollout_client.join_group(address, port, 0, world_size)
        dist.barrier()

    def get_model_name_parameters(self):
        yield from self.model.named_parameters()

    def update_weights_from_distributed(self):
        futures = []
        for name, param in self.get_model_name_parameters():
            if isinstance(param.data, DTensor):
                tensor = param.data.full_tensor()
            else:
                tensor = param.data
            if dist.get_rank() == 0:
                futures.append(self.rollout_client.update_weight(name, tensor.dtype, tensor.shape))
                dist.broadcast(tensor, src=0, group=self.weight_update_group)
            del tensor
        for fut in futures:
            fut.result()
        dist.barrier()
        torch.cuda.synchronize()
        self.version += 1
