import os

import torch.distributed as dist


def if_main_process():
    return int(os.environ.get("RANK", "0")) == 0


def ddp_barrier():
    if dist.is_initialized():
        dist.barrier()


def run_on_main(func, args=None, kwargs=None):
    if if_main_process():
        func(*(args or []), **(kwargs or {}))
    ddp_barrier()
