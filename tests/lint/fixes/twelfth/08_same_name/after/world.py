import os

import torch
import torch.distributed as dist


def join():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def chief():
    return int(os.environ["RANK"]) == 0
