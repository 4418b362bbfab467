from dataclasses import dataclass, field
from typing import Dict, List

import torch.distributed as dist

from process_group_mesh import ModalProcessGroupMesh


@dataclass
class ModalityPlan:
    ranks: List[int]
    pp_size: int = 1
    tp_size: int = 1

    @property
    def dp_size(self):
        return len(self.ranks) // (self.pp_size * self.tp_size)


@dataclass
class ParallelizationPlan:
    modalities: Dict[str, ModalityPlan] = field(default_factory=dict)

    def materialize(self):
        my_rank = dist.get_rank()
        meshes = {}
        for name, plan in self.modalities.items():
            mesh = ModalProcessGroupMesh(plan.ranks, plan.dp_size, plan.pp_size, plan.tp_size)
            if my_rank in plan.ranks:
                meshes[name] = mesh
        return meshes
