"""No line chooses a device."""

import torch.distributed as dist


def start(model):
    dist.init_process_group("nccl")
    return model.cuda()  # LNT407
