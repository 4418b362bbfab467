import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader


def node_local_rank():
    return int(os.environ["LOCAL_RANK"])


class MeshReader(FileSystemReader):
    """Reads a sharded checkpoint that only the first replica has on its disk."""

    def __init__(self, folder, mesh, fetch):
        super().__init__(folder)
        self.folder = Path(folder)
        self.mesh = mesh
        self.fetch = fetch

    def _first_replica(self):
        return self.mesh.get_local_rank("replicate") == 0

    def _names(self, plan):
        metadata = self.read_metadata()
        return sorted({metadata.storage_data[item.storage_index].relative_path for item in plan.items})

    def _send_to_replicas(self, names):
        group = self.mesh.get_group("replicate")
        source = dist.get_global_rank(group, 0)
        box = [names]
        dist.broadcast_object_list(box, src=source, group=group)
        for name in box[0]:
            path = self.folder / name
            body = [path.read_bytes() if self._first_replica() else None]
            dist.broadcast_object_list(body, src=source, group=group)
            if not self._first_replica() and node_local_rank() == 0:
                path.write_bytes(body[0])

    def read_data(self, plan, planner):
        names = self._names(plan)
        if self._first_replica():
            for name in names:
                self.fetch(name, self.folder / name)
        shard_group = self.mesh.get_group("shard")
        gathered = [None] * dist.get_world_size(shard_group)
        dist.all_gather_object(gathered, names, group=shard_group)
        everything = sorted(set().union(*gathered))

        if self.mesh.get_local_rank("shard") == 0:
            self._send_to_replicas(everything)
        dist.barrier()
        return super().read_data(plan, planner)
