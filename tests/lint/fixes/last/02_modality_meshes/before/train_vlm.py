import os

import torch
import torch.distributed as dist

from plan import ModalityPlan, ParallelizationPlan


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    plan = ParallelizationPlan(
        {
            "vision": ModalityPlan(ranks=[0]),
            "language": ModalityPlan(ranks=[1, 2], pp_size=2),
        }
    )
    meshes = plan.materialize()
    for name, mesh in meshes.items():
        print(dist.get_rank(), name, mesh.stage())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
