import asyncio
import logging
import os

import ray
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

log = logging.getLogger(__name__)


class PicturePrompts:
    """Prompts of a batch together with their pictures, kept out of the tensors."""

    def __init__(self, ids, pictures):
        self.ids = ids
        self.pictures = pictures

    def __len__(self):
        return len(self.ids)

    def split(self, parts):
        size = -(-len(self) // parts)
        return [PicturePrompts(self.ids[i : i + size], self.pictures[i : i + size])
                for i in range(0, len(self), size)]


@ray.remote
class ServerAdapter:
    def __init__(self, cfg, rank, world_size):
        self.cfg = cfg
        self.rank, self.world_size = rank, world_size
        self.server = None

    def connect(self, host, port):
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(self.rank),
                          WORLD_SIZE=str(self.world_size))
        dist.init_process_group("cpu:gloo,cuda:nccl")
        tp = self.cfg["tensor_parallel"]
        self.mesh = init_device_mesh("cpu", (self.world_size // tp, tp), mesh_dim_names=("dp", "tp"))
        self.exclude_dp_group = self.mesh["tp"].get_group()
        self.replica = self.mesh["dp"].get_local_rank()
        self.is_leader = self.mesh["tp"].get_local_rank() == 0
        if self.is_leader:
            self.server = ray.get_actor(f"generation-server-{self.replica}")
        dist.barrier()

    def _share_handles(self, update):
        everyone = [None] * self.cfg["tensor_parallel"]
        dist.all_gather_object(everyone, update, group=self.exclude_dp_group)
        return {device: handle for part in everyone for device, handle in part.items()}

    def update_weights(self, named_tensors):
        bucket, size = [], 0
        for name, tensor in named_tensors:
            bucket.append((name, tensor))
            size += tensor.numel() * tensor.element_size()
            if size >= self.cfg["bucket_bytes"]:
                self._send_bucket(bucket)
                bucket, size = [], 0
        if bucket:
            self._send_bucket(bucket)
        dist.barrier(group=self.exclude_dp_group)

    def _send_bucket(self, bucket):
        handles = [(n, torch.multiprocessing.reductions.reduce_tensor(t)) for n, t in bucket]
        merged = self._share_handles({torch.cuda.current_device(): handles})
        if self.is_leader:
            ray.get(self.server.load_weights.remote(merged))

    def _vision_names(self):
        names = None
        if self.is_leader:
            names = ray.get(self.server.vision_parameter_names.remote())
        box = [names]
        src = dist.get_global_rank(self.exclude_dp_group, 0)
        dist.broadcast_object_list(box, src=src, group=self.exclude_dp_group)
        return set(box[0])

    def sync(self, actor):
        frozen = self._vision_names() if self.cfg["freeze_vision"] else set()
        self.update_weights((n, p) for n, p in actor.full_parameters() if n not in frozen)

    async def _generate(self, prompts):
        calls = [self.server.generate.remote(i, p, self.cfg["sampling"])
                 for i, p in zip(prompts.ids, prompts.pictures)]
        return await asyncio.gather(*calls)

    def generate(self, prompts):
        mine = prompts.split(self.mesh["dp"].size())[self.replica]
        answers = asyncio.run(self._generate(mine)) if self.is_leader else None
        dist.barrier(group=self.exclude_dp_group)
        log.info("replica %d: %d prompts", self.replica, len(mine))
        return answers
