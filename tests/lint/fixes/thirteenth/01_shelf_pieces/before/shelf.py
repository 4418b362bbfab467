import os
from pathlib import Path

import torch.distributed as dist


class PieceShelf:
    """Brings the files of a sharded checkpoint to the disk of each node."""

    def __init__(self, mesh, remote: Path, local: Path):
        self.mesh = mesh
        self.remote = remote
        self.local = local
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.first_copy = mesh.get_local_rank("copies") == 0

    def _own_piece(self):
        return f"piece_{self.mesh.get_local_rank('pieces')}.bin"

    def _fetch(self):
        name = self._own_piece()
        (self.local / name).write_bytes((self.remote / name).read_bytes())
        return name

    def _spread(self, names):
        copies = self.mesh.get_group("copies")
        src = dist.get_global_rank(copies, 0)
        if self.local_rank == 0:
            for name in names:
                box = [(self.local / name).read_bytes() if self.first_copy else None]
                dist.broadcast_object_list(box, src=src, group=copies)
                if not self.first_copy:
                    (self.local / name).write_bytes(box[0])

    def prepare(self):
        name = self._fetch() if self.first_copy else self._own_piece()
        pieces = self.mesh.get_group("pieces")
        names = [None] * dist.get_world_size(pieces)
        dist.all_gather_object(names, name, group=pieces)
        self._spread(names)
        dist.barrier()
        return self.local / name
