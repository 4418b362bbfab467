import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

log = logging.getLogger(__name__)


class DistCPObjectStoreReader(FileSystemReader):
    def __init__(self, source_path, destination_path, object_store, device_mesh=None):
        self.source_path = source_path
        self.destination_path = destination_path
        self.object_store = object_store
        self.device_mesh = device_mesh
        Path(destination_path).mkdir(parents=True, exist_ok=True)
        if int(os.environ["LOCAL_RANK"]) == 0:
            object_store.download(f"{source_path}/.metadata", f"{destination_path}/.metadata")
        dist.barrier()
        super().__init__(destination_path)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner):
        first_replica = True
        if self.device_mesh is not None and "replicate" in self.device_mesh.mesh_dim_names:
            first_replica = self.device_mesh.get_local_rank("replicate") == 0

        wanted = {self.storage_data[item.storage_index].relative_path for item in plan.items}
        all_wanted = [None] * dist.get_world_size()
        dist.all_gather_object(all_wanted, wanted)

        if first_replica:
            rank = dist.get_rank()
            local_rank_0 = rank - int(os.environ["LOCAL_RANK"])
            try:
                for relative_path in wanted:
                    taken = any(relative_path in all_wanted[i] for i in range(local_rank_0, rank))
                    destination = os.path.join(self.destination_path, relative_path)
                    if not taken and not os.path.exists(destination):
                        self.object_store.download(f"{self.source_path}/{relative_path}", destination)
            except Exception as e:
                log.error(f"Exception {type(e)} raised during downloading: {e}")
                raise e

        log.debug(f"Rank {dist.get_rank()} finished downloading all files.")
        dist.barrier()
        return super().read_data(plan, planner)
