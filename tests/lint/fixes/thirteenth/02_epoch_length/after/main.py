import os

import torch
import torch.distributed as dist

from fit import Fit
from systems import SystemPool


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    pool = SystemPool([9000, 700, 3100], [0.6, 0.1, 0.3], batch=8, seed=dist.get_rank())
    Fit(net, pool, device, epochs=4).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
