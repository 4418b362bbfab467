import os

import torch
import torch.distributed as dist

from compiler import Compiler, product
from shelf import Shelf


@torch.no_grad()
def main():
    dist.init_process_group("nccl")
    local = os.environ["LOCAL_RANK"]
    device = torch.device("cuda", int(local))
    torch.cuda.set_device(device)
    compiler = Compiler(Shelf(os.path.join("/tmp/plan_shelf", local)), device)
    for rows, inner, cols in ((512, 1024, 1024), (2048, 1024, 4096), (128, 4096, 1024)):
        x = torch.randn(rows, inner, device=device)
        w = torch.randn(inner, cols, device=device)
        plan = compiler.plan(x, w)
        y = product(plan["way"], x, w)
        dist.all_reduce(y)
        if dist.get_rank() == 0:
            print(rows, inner, cols, plan["way"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
