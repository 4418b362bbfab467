import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


class ModalProcessGroupMesh:
    def __init__(self, ranks, dp_size, pp_size, tp_size):
        self.ranks = list(ranks)
        layout = torch.tensor(self.ranks).view(dp_size, pp_size, tp_size)
        self.mesh = DeviceMesh("cuda", layout, mesh_dim_names=("dp", "pp", "tp"))

    @property
    def is_member(self):
        return dist.get_rank() in self.ranks

    def stage(self):
        return self.mesh.get_local_rank("pp")

    def group(self, dim):
        return self.mesh.get_group(dim)
